"""A Postgres database: whether it can be used, and its clock."""

from contextlib import closing

from oncegate.clocks import wall
from oncegate.doctor.facts import StoreFacts
from oncegate.doctor.stores.seen import Seen, clock
from oncegate.errors import NoStore
from oncegate.stores import open_store
from oncegate.stores.postgres.connections import Connections
from oncegate.stores.postgres.settings import read_url


def look(url: str, shown: str) -> Seen:
    settings = read_url(url)
    absent = None
    try:
        open_store(url, create=False).close()
    except NoStore:
        absent = f"there is no schema {settings.schema} in it yet"
    with closing(Connections(settings)) as connections, connections.borrowed() as db:
        before = wall()
        ((time,),) = db.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").fetchall()
        ticking = clock(settings.place, before, time)
    return Seen(store=StoreFacts(url=shown, scheme="postgresql", absent=absent), clocks=(ticking,))
