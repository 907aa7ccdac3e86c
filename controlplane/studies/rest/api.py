"""REST: simulations. Views parse, call one service or selector, answer."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from django.urls import URLPattern, URLResolver, include, path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiParameter,
    OpenApiResponse,
    extend_schema,
    extend_schema_view,
)
from rest_framework import mixins, status
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.viewsets import GenericViewSet

from clusters.models import Cluster
from controlplane.studies import services
from controlplane.studies.documents import StudyDocumentError
from controlplane.studies.downloads import download
from controlplane.studies.models import Simulation
from controlplane.studies.rest.serializers import (
    QueueEndInput,
    SimulationDetailSerializer,
    SimulationSerializer,
    StartNowSerializer,
    StudyInput,
    SubmissionForecastSerializer,
    WhatIfInput,
    WhatIfSerializer,
)
from controlplane.studies.selectors import get_simulation, visible_simulations
from controlplane.studies.what_if.decide import WhatIf, WhatIfError, what_if
from controlplane.studies.what_if.queue_end import queue_end_create
from controlplane.studies.what_if.start_now import start_now
from controlplane.studies.what_if.submission import forecast_submission
from controlplane.web.models import Scope
from controlplane.web.rest.errors import ConflictError
from controlplane.web.rest.openapi import ERROR_REFERENCE
from controlplane.web.rest.strict import StrictView, choice_of, flag_of
from jobs.rest.serializers import JobInput
from jobs.selectors import get_job
from jobs.submission.refusals import JobConflict
from jobs.submission.validation import JobInvalid

STATES = [str(state) for state in Simulation.State]
FILTERS = [
    OpenApiParameter(
        "state", OpenApiTypes.STR, enum=STATES, description="Only those in this state"
    ),
    OpenApiParameter("mine", OpenApiTypes.BOOL, description="Only your own"),
]


class SimulationViewSet(StrictView, mixins.ListModelMixin, GenericViewSet[Simulation]):
    """Your simulations and those of your teams; operators see all."""

    write_scope = Scope.SUBMIT
    queryset = Simulation.objects.none()
    serializer_class = SimulationSerializer
    lookup_value_regex = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"

    def get_queryset(self) -> QuerySet[Simulation]:
        """Simulations that the caller may see and asks for."""
        rows = visible_simulations(_user(self.request))
        state = choice_of(self.request, "state", STATES)
        if state is not None:
            rows = rows.filter(state=state)
        if flag_of(self.request, "mine"):
            rows = rows.filter(user=_user(self.request))
        return rows

    @extend_schema(parameters=FILTERS)
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().list(request, *args, **kwargs)

    @extend_schema(responses=SimulationDetailSerializer)
    def retrieve(self, request: Request, pk: str) -> Response:
        """One simulation with its study."""
        return Response(SimulationDetailSerializer(_simulation(request, pk)).data)

    @extend_schema(request=StudyInput, responses={201: SimulationSerializer})
    def create(self, request: Request) -> Response:
        """Simulate a study: policies side by side on a cluster and a workload."""
        if not isinstance(request.data, Mapping):
            raise ValidationError({"request": ["must be a study as an object"]})
        try:
            simulation = services.simulation_create(_user(request), request.data)
        except StudyDocumentError as error:
            raise ValidationError(cast("dict[str, Any]", error.fields)) from None
        return Response(SimulationSerializer(simulation).data, status=status.HTTP_201_CREATED)

    @extend_schema(responses={204: None})
    def destroy(self, request: Request, pk: str) -> Response:
        """Delete a simulation and its results. A running simulation is stopped."""
        services.simulation_delete(_simulation(request, pk), _user(request))
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(request=None, responses=SimulationSerializer)
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: str) -> Response:
        """Stop it for good."""
        return self._after(request, pk, services.simulation_cancel)

    @extend_schema(request=None, responses=SimulationSerializer)
    @action(detail=True, methods=["post"], write_scope=Scope.OPERATE)
    def share(self, request: Request, pk: str) -> Response:
        """Make a link with which anybody may look at it: /shared/simulations/{share}/."""
        return self._after(request, pk, services.simulation_share)

    @extend_schema(request=None, responses=SimulationSerializer)
    @share.mapping.delete
    def unshare(self, request: Request, pk: str) -> Response:
        """Take the link back."""
        return self._after(request, pk, services.simulation_unshare)

    def _after(
        self, request: Request, pk: str, act: Callable[[Simulation, User], Simulation]
    ) -> Response:
        """Answer with the simulation after a service has acted on it."""
        simulation = act(_simulation(request, pk), _user(request))
        return Response(SimulationSerializer(simulation).data)


class JsonForErrors(BaseContentNegotiation):
    """Answer in any accepted type: the file is what it is, and errors are JSON."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        return parsers[0]

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> Any:
        return renderers[0], renderers[0].media_type


class SimulationFileView(StrictView):
    """A file that a simulation came to, to be downloaded."""

    file: ClassVar[str]
    media_type: ClassVar[str]
    content_negotiation_class = JsonForErrors

    def get(self, request: Request, pk: str) -> StreamingHttpResponse:
        """The file, or 404 if there is none (yet)."""
        simulation = _simulation(request, pk)
        headers = {"Content-Disposition": f'attachment; filename="{self.file}"'}
        answer = download(simulation, self.file, self.media_type, **headers)
        if answer is None:
            raise NotFound(f"the simulation is {simulation.state} and has no {self.file}")
        return answer


def _described(name: str, answer: Any = OpenApiTypes.STR) -> Any:
    """Decorate a view of a file with its name and type of answer in the OpenAPI document."""

    def decorate(view: type[SimulationFileView]) -> Any:
        responses = {(200, view.media_type): answer}
        schema = extend_schema(operation_id=name, description=view.__doc__, responses=responses)
        return extend_schema_view(get=schema)(view)

    return decorate


@_described("simulation_results", OpenApiTypes.OBJECT)
class ResultsView(SimulationFileView):
    """Costs, times and counts by policy and seed."""

    file = "results.json"
    media_type = "application/json"


@_described("simulation_jobs")
class JobsView(SimulationFileView):
    """Every job of every run as CSV."""

    file = "jobs.csv"
    media_type = "text/csv"


@_described("simulation_report")
class ReportView(SimulationFileView):
    """The report as one HTML file that needs no network."""

    file = "report.html"
    media_type = "text/html"


class QueueEndView(StrictView):
    """Live queue simulated to its end under several choices."""

    write_scope = Scope.SUBMIT

    @extend_schema(
        operation_id="what_if_end", request=QueueEndInput, responses={201: SimulationSerializer}
    )
    def post(self, request: Request, name: str) -> Response:
        """Simulate the queue to its end under the present choice and others, as a simulation."""
        body = QueueEndInput(data=request.data)
        body.is_valid(raise_exception=True)
        choices = body.validated_data["choices"]
        try:
            simulation = queue_end_create(_user(request), _cluster(name), choices)
        except WhatIfError as error:
            raise ValidationError({error.field: [str(error)]}) from None
        return Response(SimulationSerializer(simulation).data, status=status.HTTP_201_CREATED)


class WhatIfView(StrictView):
    """Decision of a policy about the live queue now."""

    write_scope = Scope.SUBMIT

    @extend_schema(
        operation_id="what_if",
        request=WhatIfInput,
        responses=OpenApiResponse(
            WhatIfSerializer, "Also where the policy could not decide: see `failure`"
        ),
    )
    def post(self, request: Request, name: str) -> Response:
        """Ask a policy what it would decide about the cluster as it is. Nothing is changed."""
        body = WhatIfInput(data=request.data)
        body.is_valid(raise_exception=True)
        policy = body.validated_data["policy"]
        parameters = body.validated_data.get("parameters") or {}
        try:
            answer = what_if(_user(request), _cluster(name), policy, parameters, _as_data)
        except WhatIfError as error:
            raise ValidationError({error.field: [str(error)]}) from None
        return Response(answer)


def _as_data(answer: WhatIf) -> dict[str, Any]:
    return dict(WhatIfSerializer(answer).data)


class StartNowView(StrictView):
    """Changes that would start a waiting job now."""

    @extend_schema(
        operation_id="job_start_now",
        responses={
            200: StartNowSerializer,
            409: OpenApiResponse(ERROR_REFERENCE, "The job does not wait"),
        },
    )
    def get(self, request: Request, pk: str) -> Response:
        """Try changes on the live queue for at most 2 s: cheapest first. Changes nothing."""
        job = get_job(request.user, pk)
        answer = start_now(_user(request), job)
        return Response(StartNowSerializer(answer).data)


class SubmissionForecastView(StrictView):
    """Expected start of a job that is not submitted."""

    write_scope = Scope.SUBMIT

    @extend_schema(
        operation_id="job_forecast",
        request=JobInput,
        responses={
            200: SubmissionForecastSerializer,
            409: OpenApiResponse(ERROR_REFERENCE, "A submission would be refused"),
        },
    )
    def post(self, request: Request) -> Response:
        """Say when and where the job would start, as `sbatch --test-only`. Submits nothing."""
        try:
            forecast = forecast_submission(_user(request), request.data)
        except JobInvalid as error:
            raise ValidationError(error.fields) from None
        except JobConflict as error:
            raise ConflictError(str(error)) from None
        return Response(SubmissionForecastSerializer(forecast).data)


def _user(request: Request) -> User:
    return cast(User, request.user)


def _cluster(name: str) -> Cluster:
    cluster = Cluster.objects.filter(name=name).first()
    if cluster is None:
        raise NotFound(f"there is no cluster {name}")
    return cluster


def _simulation(request: Request, pk: str) -> Simulation:
    return get_simulation(_user(request), pk)


router = SimpleRouter()
router.register("simulations", SimulationViewSet, basename="simulation")

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include(router.urls)),
    path("simulations/<uuid:pk>/results.json", ResultsView.as_view(), name="simulation-results"),
    path("simulations/<uuid:pk>/jobs.csv", JobsView.as_view(), name="simulation-jobs"),
    path("simulations/<uuid:pk>/report.html", ReportView.as_view(), name="simulation-report"),
    path("clusters/<slug:name>/what-if/end/", QueueEndView.as_view(), name="what-if-end"),
    path("job-forecasts/", SubmissionForecastView.as_view(), name="job-forecasts"),
    path("jobs/<uuid:pk>/start-now/", StartNowView.as_view(), name="job-start-now"),
    path("clusters/<slug:name>/what-if/", WhatIfView.as_view(), name="what-if"),
]
