import pytest

pytest.importorskip("fastapi", reason="the extra serve is not here")
pytest.importorskip("httpx", reason="httpx is not here")
