"""Who sees and does what on Weir's pages: by Airflow's login, and by the permissions on a pipeline's DAGs.

Who may read the stream DAG of a pipeline sees the pipeline; who may start runs of a DAG may do what that DAG does. Acts come by POST
from a page of this server, or from a program with a token of its own.
"""

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException, Request

from weir.layout import STREAM, Home, dag_id
from weir.overview import NAME, Declarations
from weir.pipeline import Pipeline
from weir.refusal import Refusal

_DECLARATIONS = Declarations()


@dataclass(frozen=True)
class Visitor:
    """Somebody with a login, and what may be shown to them."""

    user: BaseUser
    home: Home

    def pipelines(self) -> list[str]:
        """The names of the pipelines that may be seen."""
        return [name for name in _DECLARATIONS.names(self.home) if self.sees(name)]

    def sees(self, pipeline: str) -> bool:
        details = _details(dag_id(pipeline, STREAM))
        return get_auth_manager().is_authorized_dag(method="GET", details=details, user=self.user)

    def may(self, pipeline: str, part: str) -> bool:
        """Whether they may start runs of this DAG of the pipeline."""
        details = _details(dag_id(pipeline, part))
        return get_auth_manager().is_authorized_dag(method="POST", access_entity=DagAccessEntity.RUN, details=details, user=self.user)

    def must_see(self, pipeline: str) -> None:
        if not NAME.fullmatch(pipeline) or pipeline not in _DECLARATIONS.names(self.home):
            raise HTTPException(404, "There is no such pipeline.")
        if not self.sees(pipeline):
            raise HTTPException(403, "You may not see this pipeline.")

    def must_act(self, pipeline: str, part: str) -> None:
        self.must_see(pipeline)
        if not self.may(pipeline, part):
            raise HTTPException(403, f"You may not start runs of {dag_id(pipeline, part)}.")

    def load(self, pipeline: str) -> Pipeline:
        """The declaration; one that cannot be loaded is said in its own line."""
        self.must_see(pipeline)
        try:
            return self.declared(pipeline)
        except Refusal as refusal:
            raise HTTPException(409, f"The declaration cannot be loaded: {refusal}") from None

    def load_with(self, pipeline: str, view: str) -> Pipeline:
        """The declaration, which has this view."""
        declared = self.load(pipeline)
        if view not in declared.views:
            raise HTTPException(404, "There is no such view.")
        return declared

    def declared(self, pipeline: str) -> Pipeline:
        return _DECLARATIONS.load(self.home, pipeline)


def _details(dag: str) -> DagDetails:
    team = DagModel.get_team_name(dag) if conf.getboolean("core", "multi_team", fallback=False) else None
    return DagDetails(id=dag, team_name=team)


def visitor(user: GetUserDep) -> Visitor:
    return Visitor(user, Home.from_environment())


VisitorDep = Annotated[Visitor, Depends(visitor)]


def refuse_other_sites(request: Request) -> None:
    """A browser sends its cookie along with whatever another site makes it post; a token that stands in a header was put there."""
    if request.headers.get("authorization", "").lower().startswith("bearer "):
        return
    origin, fetched_from = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    is_own = (
        fetched_from == "same-origin" if fetched_from else bool(origin) and urlsplit(origin or "").netloc == request.headers.get("host")
    )
    if not is_own:
        raise HTTPException(403, "This was asked for by another site.")
