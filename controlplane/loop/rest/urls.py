"""Addresses of rounds, below /api/v1/."""

from rest_framework.routers import SimpleRouter

from controlplane.loop.rest.api import RoundViewSet

router = SimpleRouter()
router.register("rounds", RoundViewSet, basename="round")
urlpatterns = router.urls
