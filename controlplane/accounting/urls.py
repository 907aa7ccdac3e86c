"""Address of costs, below /api/v1/."""

from django.urls import path

from controlplane.accounting.api import CostsView

urlpatterns = [path("costs/", CostsView.as_view(), name="api-costs")]
