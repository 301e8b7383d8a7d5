"""Somebody in front of the pages."""

from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from fastapi.testclient import TestClient
from pages import Page

from weir.layout import Home
from weir_airflow.pages import app

OWN_SITE = {"sec-fetch-site": "same-origin"}


class Browser:
    """Somebody with a role in front of the pages, and the lake behind them."""

    def __init__(self, home: Home) -> None:
        self.home, self.role = home, "admin"
        self.client = TestClient(app, follow_redirects=False, headers={"accept": "text/html"})
        app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="ann", role=self.role)

    def get(self, path: str, status: int = 200) -> Page:
        answer = self.client.get(path)
        assert answer.status_code == status, answer.text[-2_000:]
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        return Page(answer.text)

    def post(self, path: str, status: int = 303, headers: dict[str, str] = OWN_SITE, **form: str) -> str:
        answer = self.client.post(path, data=form, headers=headers)
        assert answer.status_code == status, answer.text[-2_000:]
        return answer.headers.get("location", "") or Page(answer.text).words
