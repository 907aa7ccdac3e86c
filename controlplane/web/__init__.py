"""The kit every page and endpoint uses: HTTP, REST, pages, logs and storage."""
