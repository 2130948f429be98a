"""One file per contender: `make(params, **options) -> step function`; `Unavailable` says why there is none."""


class Unavailable(Exception):
    """The contender cannot run here; the text says why."""
