-- The tables and the questions of an analysis, for DuckDB. All tables are in a file in a temporary folder, so the size
-- of a recording is not limited by memory. Columns of `deliveries` are described in delivery_rows.py.
--
--   deliveries   one row per delivery, with its digests, its times, and its key under each candidate
--   groups       one row per certain event: deliveries that are certainly one event
--   labels       one row per certain event, with wider and wider groups. Each group contains whole groups of the one
--                before:
--                  certain    certainly one event
--                  likely     and copies that are inferred: emissions of one state change that differ only in their
--                             times, and the same body without an event time, published with the same timestamp
--                  same_id    and other content under the same id (a conflict)
--                  possible   and deliveries that may be copies or different events: the same body without an event
--                             time, published at another time; other content with the same state, close in time
--                Two deliveries in different `possible` groups are certainly different events.
--   joins        emissions of a state change that join an earlier emission under a strategy with a timeline
--   copies       one row per delivery that is not the first of its likely event
--
-- Names in braces are replaced before a statement runs.

-- name: load
create table deliveries as
select * from read_csv({files}, header = false, auto_detect = false, columns = {columns});

-- name: groups
create table groups as
select
    certain,
    any_value(kind) as kind,
    any_value(body) as body,
    bool_or(is_own) as is_own,
    min(sent_at) as sent_at,
    min(occurred_at) as occurred_at,
    any_value(skeleton) as skeleton,
    any_value(timeline) as timeline,
    any_value(state) as state,
    min(position) as first,
    arg_min(coalesce(id, 0), position) as first_id,
    arg_min(coalesce(arrived_at, -1), position) as first_arrival,
    count(*) as deliveries
from deliveries
group by certain;

-- name: emissions
-- Emissions on timelines that have two emissions of one state. `before` and `until` count the emissions of the timeline
-- with an earlier time, and with this or an earlier time.
create table emissions as
select
    certain, timeline, state, skeleton, occurred_at, is_own, body, sent_at,
    rank() over (partition by timeline order by occurred_at) - 1 as before,
    count(*) over (partition by timeline order by occurred_at) as until
from groups
where occurred_at is not null and timeline in (
    select timeline from groups
    where timeline is not null and occurred_at is not null
    group by timeline, state having count(*) > 1
);

-- name: echoes
-- Chains of emissions of one state: each at most {window} microseconds after the one before, and no other state between
-- them. `gap` is the time since the emission before. `condition` is a further condition on two neighbours.
create table {table} as
select *, sum(starts) over (partition by {by} order by occurred_at, certain rows unbounded preceding) as chain
from (
    select
        *,
        occurred_at - lag(occurred_at) over parts as gap,
        case
            when occurred_at - lag(occurred_at) over parts <= {window} and before <= lag(until) over parts
                and {condition} then 0
            else 1
        end as starts
    from emissions
    window parts as (partition by {by} order by occurred_at, certain)
);

-- name: labels
create table labels as
select
    g.certain, g.kind, g.body, g.is_own, g.first, g.deliveries,
    case
        when e.certain is not null then hash(e.timeline, e.state, e.skeleton, e.chain)
        when not g.is_own and g.sent_at is not null then hash(g.body, g.sent_at)
        else g.certain
    end as likely
from groups g left join echoes e using (certain);

-- name: subjects
-- Different content under one id.
create or replace table bridges as
select distinct d.subject as bridge, l.likely as origin, l.likely as label
from (select distinct subject, certain from deliveries where subject is not null) d join labels l using (certain);

-- name: similar
-- The same body without an event time, and emissions of one state that are close in time.
create or replace table bridges as
select body as bridge, same_id as origin, same_id as label from labels where not is_own
union
select hash(n.timeline, n.state, n.chain), l.same_id, l.same_id
from near_echoes n join labels l using (certain);

-- name: multiple
create or replace table bridges as
select * from bridges where bridge in (select bridge from bridges group by bridge having count(*) > 1);

-- name: spread
-- One round in which groups with a common bridge get the least of their labels, and then the label of the group that
-- has this label. So the number of rounds grows only with the logarithm of the longest chain.
create or replace table bridges as
with by_bridge as (select bridge, min(label) as label from bridges group by bridge),
by_origin as (select origin, min(b.label) as label from bridges join by_bridge b using (bridge) group by origin)
select s.bridge, s.origin, least(g.label, coalesce(f.label, g.label)) as label
from bridges s join by_origin g using (origin) left join by_origin f on f.origin = g.label;

-- name: remaining
select count(*) from (select bridge from bridges group by bridge having min(label) <> max(label));

-- name: widen
create or replace table labels as
with found as (select origin, min(label) as label from bridges group by origin)
select l.*, coalesce(f.label, l.{before}) as {label}
from labels l left join found f on f.origin = l.{before};

-- name: near_changes
-- The emissions of timelines on which two emissions of one state are at most {window} apart, in the order of arrival.
with changes as (
    select {timeline} as timeline, {state} as state, occurred_at, {key} as emission,
        min({rank}) as rank, min(position) as first
    from deliveries where {timeline} is not null
    group by 1, 2, 3, 4
),
near as (
    select timeline from (
        select timeline, occurred_at - lag(occurred_at) over (partition by timeline, state order by occurred_at) as gap
        from changes
    ) where gap <= {window}
)
select timeline, state, occurred_at, emission, rank from changes
where timeline in (select timeline from near) order by timeline, first;

-- name: joins
create or replace table {table} as
select * from read_csv(
    {file}, header = false, auto_detect = false, columns = {'emission': 'UBIGINT', 'anchor': 'UBIGINT'}
);

-- name: window
select max({column}) from deliveries;

-- name: keyed
create or replace view keyed as
select d.*{joined} from deliveries d {joins};

-- name: by_key
create or replace temp table by_key as
select
    {key} as key, certain, any_value(kind) as kind, min(position) as first, count(*) as deliveries,
    count(*) filter (position < {half}) as early
from keyed
where {key} is not null
group by 1, 2;

-- name: shared
-- The keys that several certain events share.
create or replace temp table shared as
select b.*, l.likely, l.possible, l.same_id
from by_key b join labels l using (certain)
where b.key in (select key from by_key group by key having count(*) > 1);

-- name: caught
select kind, sum(deliveries), sum(deliveries - 1), sum(early - (first < {half})::int) from by_key group by kind;

-- name: merged
-- What a candidate merges, by type: likely copies, other content under one id, possible copies, different events.
with likely as (
    select key, likely, any_value(same_id) as same_id, any_value(possible) as possible, any_value(kind) as kind,
        min(first) as first, count(*) - 1 as merged
    from shared group by key, likely
),
same_id as (
    select key, same_id, any_value(possible) as possible, any_value(kind) as kind, min(first) as first,
        count(*) - 1 as merged
    from likely group by key, same_id
),
possible as (
    select key, possible, any_value(kind) as kind, min(first) as first, count(*) - 1 as merged
    from same_id group by key, possible
),
firsts as (select key, min(first) as first from possible group by key having count(*) > 1),
wrong as (
    select p.kind, p.first, f.first as original from possible p join firsts f using (key) where p.first > f.first
)
select 'likely' as what, kind, sum(merged), 0, null, null from likely group by kind
union all
select 'same_id', kind, sum(merged), 0, null, null from same_id group by kind
union all
select 'possible', kind, sum(merged), 0, null, null from possible group by kind
union all
select 'wrong', kind, count(*), count(*) filter (first < {half}), min(first), arg_min(original, first)
from wrong group by kind;

-- name: missed
-- An example of a certain event with two keys, by type.
select kind, min(first), arg_min(second, first) from (
    select any_value(kind) as kind, min(first) as first, max(first) as second
    from by_key group by certain having count(*) > 1
) group by kind;

-- name: kinds
select kind, sum(deliveries), count(*), count(distinct likely), count(distinct same_id), count(distinct possible)
from labels group by kind;

-- name: copies
-- A certain copy is compared with the first delivery of its certain event; the first delivery of a certain event that is
-- probably a copy is compared with the first delivery of its likely event.
create table copies as
with origins as (
    select likely, arg_min(certain, first) as origin from labels group by likely having sum(deliveries) > 1
),
pairs as (
    select d.*, d.position = l.first as is_inferred, case when d.position = l.first then o.origin else l.certain end as original
    from deliveries d join labels l using (certain) join origins o using (likely)
    where d.position <> l.first or l.certain <> o.origin
)
select
    d.kind,
    d.position,
    d.is_inferred,
    case
        when d.is_replay then 'replay'
        when d.body <> f.body then 'state-echo'
        when coalesce(d.id, 0) = f.first_id then 'redelivery'
        else 're-emission'
    end as copy,
    -- The time of an envelope or of a message is the same in each delivery of it, so an equal time says nothing.
    case
        when f.first_arrival < 0 or (d.arrived_at = f.first_arrival and coalesce(d.id, 0) = f.first_id) then null
        else d.arrived_at - f.first_arrival
    end as gap,
    coalesce(d.arrived_at, d.sent_at, d.occurred_at) as seen_at
from pairs d join groups f on f.certain = d.original;

-- name: copy_kinds
select kind, copy, is_inferred, count(*) from copies group by all order by all;

-- name: gaps
-- The gaps of copies, in steps of a quarter of a power of ten microseconds.
select copy, floor(4 * log10(greatest(gap, 1)))::int as step, count(*), max(gap)
from copies where gap is not null group by all order by all;

-- name: retention
select {counts}, count(*) from copies where gap is not null;

-- name: windows
select {counts}, count(*) from echoes where starts = 0 and gap > 0;

-- name: order
-- Of the first deliveries of events with an entity and a time: how many arrive after a later event of the entity, and
-- how many have the time of another event of the entity.
with firsts as (
    select d.entity, d.occurred_at, d.position, d.body from deliveries d join labels l using (certain)
    where d.position = l.first and d.entity is not null and d.occurred_at is not null and d.is_own
),
placed as (
    select
        occurred_at < max(occurred_at) over (
            partition by entity order by position rows between unbounded preceding and 1 preceding
        ) as is_late,
        count(*) over (partition by entity, occurred_at) > 1 as is_tie
    from firsts
)
select count(*), count(*) filter (is_late), count(*) filter (is_tie) from placed;

-- name: lateness
select count(*), quantile_disc(late, 0.5), quantile_disc(late, 0.99), max(late) from (
    select arrived_at - occurred_at as late from deliveries
    where arrived_at is not null and occurred_at is not null and is_own and arrived_at >= occurred_at
);

-- name: span
select min(seen_at), max(seen_at), count(seen_at), count(*), (select count(arrived_at) from deliveries) from (
    select coalesce(arrived_at, sent_at, occurred_at) as seen_at from deliveries
);

-- name: over_time
select copy, least(floor((seen_at - {begin}) / {step}), {last})::int as slot, count(*)
from copies where seen_at is not null group by all order by all;

-- name: places
select position, file, place, size, item from deliveries where position in ({positions});

-- name: export
copy (
    select {columns}
    from keyed d join (select certain as event, likely, same_id, possible from labels) on event = d.certain
    order by position
) to {file} ({format});
