"""REST: errors, parsers, paging, authentication, the OpenAPI document."""
