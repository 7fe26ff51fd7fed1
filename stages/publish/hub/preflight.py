"""Can `publish` succeed? `python -m stages.publish.hub.preflight`, before hours of training.

Checks the token, its access, the names and whether what is private stays so. It changes nothing on the Hub. The Hub
tells no quota of storage before an upload.
"""

from functools import partial
from typing import Any

from huggingface_hub.errors import RepositoryNotFoundError

from stages.formats.revision.provenance import MAIN
from stages.publish.hub import client
from stages.publish.hub.publication import other_repositories
from stages.publish.hub.repository import Repository
from stages.publish.params import PublishParams
from stages.runtime.entry import UserError, run_stage
from stages.runtime.section import read_section

LIMIT_SECONDS = 120.0


def main() -> None:
    """Check every repository that the parameters name."""
    params = read_section("publish", PublishParams)
    if params.repository is None:
        return
    client.configure_clients()
    api = client.connect(params.repository)
    repositories = [Repository(api, params.repository), *other_repositories(params, api)]
    late = f"{repositories[0].title}: the Hub has not answered for {LIMIT_SECONDS:.0f} s"
    client.within(LIMIT_SECONDS, lambda: check(repositories, private=params.private), late)


def check(repositories: list[Repository], *, private: bool) -> None:
    """Raise UserError that says what publish would fail with."""
    first = repositories[0]
    with client.explained(first.api, first.name):
        account = client.retried(first.api.whoami)
    for repository in repositories:
        with client.explained(repository.api, repository.name, repository.setting):
            try:
                client.retried(partial(repository.head, MAIN))
            except RepositoryNotFoundError:
                require_creatable(repository, account)
            else:
                repository.require_access(private=private)


def require_creatable(repository: Repository, account: dict[str, Any]) -> None:
    """Raise UserError where this account or its token may not make the repository, as far as the Hub tells."""
    owner = repository.name.split("/")[0].lower()
    roles = {str(account.get("name", "")).lower(): "admin"}
    roles |= {str(org.get("name", "")).lower(): str(org.get("roleInOrg", "")) for org in account.get("orgs", [])}
    if owner not in roles:
        raise UserError(
            f"{repository.title}: not found, and {account.get('name')}, whose token is in {client.TOKEN_VARIABLE}, may "
            f"make repositories only below {', '.join(sorted(roles))}; correct the name, or use another token"
        )
    token = account.get("auth", {}).get("accessToken", {})
    if roles[owner] == "read" or token.get("role") == "read" or not may_write(token, owner):
        raise UserError(
            f"{repository.title}: not found, and the token in {client.TOKEN_VARIABLE} may not make it; give it write "
            f"access ({repository.api.endpoint}/settings/tokens)"
        )


def may_write(token: dict[str, Any], owner: str) -> bool:
    """Whether a fine-grained token may write repositories of an owner; True for other kinds of token."""
    scopes = token.get("fineGrained")
    if token.get("role") != "fineGrained" or not scopes:
        return True
    return any(
        "repo.write" in scope.get("permissions", [])
        for scope in scopes.get("scoped", [])
        if str(scope.get("entity", {}).get("name", "")).lower() == owner
    )


if __name__ == "__main__":
    run_stage(main)
