"""Connections to the cache outlast the request that opened them."""

from controlplane.web.storage.shared_cache import SharedRedisCache


def of(server: str, **options: object) -> object:
    """The client of a cache made anew, as for each request."""
    return SharedRedisCache(server, {"OPTIONS": options})._cache


def test_caches_at_one_place_share_their_connections() -> None:
    assert of("unix:///a.sock") is of("unix:///a.sock")


def test_other_places_and_options_have_their_own() -> None:
    assert of("unix:///a.sock") is not of("unix:///b.sock")
    assert of("rediss://a", ssl_ca_certs="a") is not of("rediss://a", ssl_ca_certs="b")
