"""Pages: formats, charts, paging, static files, the administration's base."""
