"""State outside the core: views, state dicts, files, and formats of other libraries."""
