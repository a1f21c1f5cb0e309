"""Per-role views of a compiled kernel: static counts from PTX, SASS and the cubin."""


def inspect_main(argv: list[str]) -> int:
    """`fa4 inspect`; see `fa4.profile.inspect`."""
    from fa4.profile.inspect import inspect_main as run  # the compiler takes seconds to import

    return run(argv)
