"""Reports of studies: figures, charts and the page."""
