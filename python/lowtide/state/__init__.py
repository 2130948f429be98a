"""State outside of the core: views, state dicts, files, and other libraries' formats."""
