"""What pip is configured with reaches uv, which reads no configuration of pip."""

import runpy

from tests.small_project import ROOT

INSTALL = runpy.run_path(str(ROOT / "deploy/install.py"))

LISTED = """\
:env:.find-links='/wheels'
global.cert='/etc/ca.crt'
global.extra-index-url='file:///one/simple https://user:it%27s@two/simple'
global.find-links='/other'
global.index-url="https://mirror/simple"
install.constraint='/etc/constraints.txt'
download.no-index='true'
"""


def test_uv_is_given_the_indexes_and_constraints_of_pip() -> None:
    settings = INSTALL["configured"](LISTED)

    assert settings["cert"] == "/etc/ca.crt"
    assert INSTALL["uv_options"](settings) == [
        "--default-index=https://mirror/simple",
        "--index=file:///one/simple",
        "--index=https://user:it%27s@two/simple",
        "--find-links=/wheels",
        "--constraints=/etc/constraints.txt",
        "--index-strategy",
        "unsafe-best-match",
    ]


def test_without_a_configuration_uv_uses_its_own_defaults() -> None:
    assert INSTALL["uv_options"](INSTALL["configured"]("")) == ["--index-strategy", "unsafe-best-match"]
