"""Kit of pages and endpoints: HTTP, REST, pages, logs and storage."""
