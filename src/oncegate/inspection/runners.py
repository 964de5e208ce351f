"""Which program runs events that wait in the store: redriven dead letters and replayed events."""

from collections.abc import Collection

from oncegate.inspection.operators import settings_of_namespace
from oncegate.settings import Settings
from oncegate.settings.routes import routes_of
from oncegate.settings.schema import HANDLER_OPTIONS
from oncegate.stores import keeps_events

_BY_HAND = "run the events with `oncegate dlq redrive --handler MODULE:FUNCTION`"
_NEVER = "An SQS worker or a Lambda function does not run waiting events."


def has_runner(settings: Settings, namespace: str) -> bool:
    """Whether a service with these settings runs the waiting events of a namespace: it has a route with this namespace
    and a handler."""
    return any(
        route["namespace"] == namespace and any(route[f"serve.{option}"] is not None for option in HANDLER_OPTIONS)
        for route in routes_of(settings).values()
    )


def who_runs(settings: Settings, namespaces: Collection[str], *, is_service: bool) -> list[str]:
    """Sentences that say which program runs waiting events of these namespaces. `is_service`: a service with these
    settings runs in this process."""
    others = "or `oncegate work inbox` with this store" if keeps_events(settings["store"]) else "with this store"
    run = sorted(each for each in namespaces if has_runner(settings, each))
    not_run = sorted(set(namespaces).difference(run))
    sentences = []
    if run and is_service:
        sentences.append("This service runs waiting events within a second.")
    elif run:
        sentences.append(
            f"The console runs no events. A running `oncegate serve` {others} runs waiting events within a second. If"
            f" there is none, the events wait: start one, or {_BY_HAND}."
        )
    for namespace in not_run:
        lacks = "no handler" if settings_of_namespace(settings, namespace) is not None else "no route"
        sentences.append(
            f"These settings have {lacks} for the namespace {namespace}, so its events wait until a program with this"
            f" namespace runs them: `oncegate serve` {others}. Or {_BY_HAND}."
        )
    return sentences if is_service and not not_run else [*sentences, _NEVER]
