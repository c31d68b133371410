"""A keeper starts each execution once, waits for it, and tells its true end; it does not mind what becomes of its agent."""


def test_exit_code(keeper):
    exit_ = keeper.run("echo hi; exit 7")
    assert (exit_.code, exit_.signal, exit_.source) == (7, None, "keeper")
