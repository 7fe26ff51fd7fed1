"""A Hugging Face Hub on the loopback interface: enough of its API for the real client to publish and to load.

Repositories are bare git repositories; large files lie in a store of their own, served from a second port as on the
real Hub. Faults can be ordered: the next request that matches fails in a given way.
"""

import base64
import hashlib
import json
import re
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

WRITER = "hf_writer"
READER = "hf_reader"

LFS_SUFFIXES = (".safetensors", ".parquet")
POINTER = re.compile(rb"version https://git-lfs.github.com/spec/v1\noid sha256:([0-9a-f]{64})\nsize ([0-9]+)\n")

Json = Any


class RefusalError(Exception):
    """An answer other than success."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


@dataclass
class Fault:
    """How the next `times` requests that match `pattern` (of "METHOD /path") go wrong."""

    pattern: str
    kind: str
    """`500` or another status; `lost`: done, but the connection closes without an answer; `race`: somebody else commits
    to the branch first; `silence`: no answer; `none`: nothing, so that a later request is the one that fails."""
    times: int = 1


class Repository:
    """One bare git repository."""

    def __init__(self, folder: Path, private: bool) -> None:
        self.folder, self.private = folder, private
        self.lock = threading.Lock()
        subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(folder)], check=True)
        self.commit("main", {".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"}, [], "initial")

    def git(self, *arguments: str, data: bytes | None = None, index: Path | None = None) -> bytes:
        environment = {"PATH": "/usr/bin:/bin:/usr/local/bin"} | ({"GIT_INDEX_FILE": str(index)} if index else {})
        command = ["git", "-C", str(self.folder), "-c", "user.name=hub", "-c", "user.email=hub@localhost", *arguments]
        return subprocess.run(command, input=data, capture_output=True, check=True, env=environment).stdout

    def resolve(self, revision: str) -> str:
        try:
            return self.git("rev-parse", "--verify", "-q", f"{revision}^{{commit}}").decode().strip()
        except subprocess.CalledProcessError:
            raise RefusalError(404, "RevisionNotFound", f"no revision {revision}") from None

    def refs(self, kind: str) -> dict[str, str]:
        lines = self.git("for-each-ref", "--format=%(refname:lstrip=2) %(objectname)", f"refs/{kind}").decode()
        return dict(line.split(" ") for line in lines.splitlines())

    def tree(self, commit: str) -> dict[str, tuple[str, int]]:
        """Path -> (blob id, size of the blob)."""
        entries = {}
        for line in self.git("ls-tree", "-r", "-l", "-z", commit).decode().split("\0")[:-1]:
            (_, _, blob, size), path = line.split("\t")[0].split(), line.split("\t")[1]
            entries[path] = (blob, int(size))
        return entries

    def read(self, blob: str) -> bytes:
        return self.git("cat-file", "blob", blob)

    def commit(self, branch: str, files: dict[str, bytes], deleted: list[str], message: str) -> str:
        index = self.folder / f"index.{threading.get_ident()}"
        parents: list[str] = []
        if branch in self.refs("heads"):
            parents = ["-p", self.resolve(branch)]
            self.git("read-tree", branch, index=index)
        for path, content in files.items():
            blob = self.git("hash-object", "-w", "--stdin", data=content).decode().strip()
            self.git("update-index", "--add", "--cacheinfo", f"100644,{blob},{path}", index=index)
        for path in deleted:
            self.git("update-index", "--index-info", data=f"0 {'0' * 40}\t{path}\n".encode(), index=index)
        tree = self.git("write-tree", index=index).decode().strip()
        commit = self.git("commit-tree", tree, *parents, "-m", message).decode().strip()
        self.git("update-ref", f"refs/heads/{branch}", commit)
        index.unlink()
        return commit

    def commit_count(self, branch: str) -> int:
        return int(self.git("rev-list", "--count", branch))


@dataclass
class Hub:
    """The server: `with Hub(folder) as hub`, then `hub.endpoint`."""

    folder: Path
    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    """sha256 -> large file."""
    faults: list[Fault] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    """`METHOD /path` of each request."""
    user_agents: set[str] = field(default_factory=set)
    closing: threading.Event = field(default_factory=threading.Event)
    xet_storage: str = ""
    """Where hf_xet sends large files; unset, a folder of its own: `local://` makes the real hf_xet write there."""

    def __enter__(self) -> "Hub":
        self.servers = [self._serve(ApiHandler), self._serve(StorageHandler)]
        self.endpoint, self.storage = (f"http://127.0.0.1:{server.server_port}" for server in self.servers)
        self.xet_storage = f"local://{self.xet_folder}"
        return self

    @property
    def xet_folder(self) -> Path:
        """Chunks of large files that arrived by Xet."""
        return self.folder / "xet"

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def _serve(self, handler: type["Handler"]) -> ThreadingHTTPServer:
        server = ThreadingHTTPServer(("127.0.0.1", 0), type(handler.__name__, (handler,), {"hub": self}))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return server

    def take_fault(self, request: str) -> Fault | None:
        for fault in self.faults:
            if fault.times and re.search(fault.pattern, request):
                fault.times -= 1
                return fault
        return None

    def requests(self, pattern: str) -> int:
        return sum(bool(re.search(pattern, line)) for line in self.log)

    def lfs_info(self, repository: Repository, blob: str, size: int) -> Json | None:
        """The large file that a blob points to."""
        match = POINTER.fullmatch(repository.read(blob)) if size < 200 else None
        return {"oid": match[1].decode(), "size": int(match[2]), "pointerSize": size} if match else None


class Handler(BaseHTTPRequestHandler):
    """What both ports share: faults, the log, answers."""

    protocol_version = "HTTP/1.1"
    hub: ClassVar[Hub]

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def handle_request(self) -> None:
        request = f"{self.command} {unquote(self.path)}"
        self.hub.log.append(request)
        self.hub.user_agents.add(self.headers.get("User-Agent", ""))
        fault = self.hub.take_fault(request)
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if fault and fault.kind.isdigit():
            return self.answer(int(fault.kind), {"error": "ordered by the test\nin two lines"})
        if fault and fault.kind == "silence":
            self.hub.closing.wait()
            return self.drop()
        if isinstance(self, ApiHandler) and fault and fault.kind == "race":
            self.race()
        try:
            respond = self.respond()
        except RefusalError as refusal:
            headers = {"X-Error-Code": refusal.code, "X-Error-Message": refusal.message}
            return self.answer(refusal.status, {"error": refusal.message}, headers)
        return self.drop() if fault and fault.kind == "lost" else respond()

    def respond(self) -> Callable[[], None]:
        raise NotImplementedError

    def drop(self) -> None:
        self.close_connection = True
        self.connection.close()

    def answer(self, status: int, content: Json | bytes, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


for method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
    setattr(Handler, f"do_{method}", Handler.handle_request)  # which http.server calls


class StorageHandler(Handler):
    """The store of large files: PUT and GET by sha256."""

    def respond(self) -> Callable[[], None]:
        oid = self.path.strip("/")
        if self.command == "PUT":
            if hashlib.sha256(self.body).hexdigest() != oid:
                raise RefusalError(400, message="not the content that was announced")
            self.hub.objects[oid] = self.body
        return lambda: self.answer(200, self.hub.objects[oid])


class ApiHandler(Handler):
    """The API and the files."""

    def respond(self) -> Callable[[], None]:
        path = unquote(urlsplit(self.path).path)
        for pattern, method in ROUTES:
            match = re.fullmatch(pattern, f"{self.command} {path}")
            if match:
                return method(self, **{name: value for name, value in match.groupdict().items() if value is not None})
        raise RefusalError(404, message=f"the test's hub does not know {self.command} {path}")

    def json(self) -> Json:
        return json.loads(self.body)

    def ok(self, content: Json) -> Callable[[], None]:
        return lambda: self.answer(200, content, {"Content-Type": "application/json"})

    def token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def require_writer(self) -> None:
        if self.token() not in (WRITER, READER):
            raise RefusalError(401, message="who are you?")
        if self.token() != WRITER:
            raise RefusalError(403, message="you may not write")

    def repository(self, name: str) -> Repository:
        name = name.removeprefix("models/")
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.private and self.token() not in (WRITER, READER)):
            raise RefusalError(404 if self.token() else 401, "RepoNotFound", f"no repository {name}")
        return repository

    def writable(self, name: str) -> Repository:
        repository = self.repository(name)
        self.require_writer()
        return repository

    def race(self) -> None:
        match = re.search(r"/api/(.+/.+)/commit/(.+)", unquote(self.path))
        assert match
        self.repository(match[1]).commit(match[2], {"OTHER.md": b"somebody was faster\n"}, [], "race")

    def create(self) -> Callable[[], None]:
        self.require_writer()
        values = self.json()
        kind = "datasets/" if values.get("type") == "dataset" else ""
        name = f"{kind}{values['organization']}/{values['name']}"
        answer = {"url": f"{self.hub.endpoint}/{name}"}
        if name in self.hub.repositories:
            return lambda: self.answer(409, answer | {"error": "exists"})
        private = values.get("visibility") == "private" or values.get("private", False)
        self.hub.repositories[name] = Repository(self.hub.folder / name, private)
        return self.ok(answer)

    def authorize(self, name: str) -> Callable[[], None]:
        self.writable(name)
        return self.ok({})

    def branch(self, name: str, branch: str) -> Callable[[], None]:
        return self.new_ref(name, "heads", branch, self.json().get("startingPoint", "main"))

    def tag(self, name: str, revision: str) -> Callable[[], None]:
        return self.new_ref(name, "tags", self.json()["tag"], revision)

    def untag(self, name: str, tag: str) -> Callable[[], None]:
        repository = self.writable(name)
        if tag not in repository.refs("tags"):
            raise RefusalError(404, "RevisionNotFound", f"no tag {tag}")
        repository.git("update-ref", "-d", f"refs/tags/{tag}")
        return self.ok({})

    def new_ref(self, name: str, kind: str, ref: str, revision: str) -> Callable[[], None]:
        repository = self.writable(name)
        if ref in repository.refs(kind):
            raise RefusalError(409, message=f"{ref} exists")
        repository.git("update-ref", f"refs/{kind}/{ref}", repository.resolve(revision))
        return self.ok({})

    def commits(self, name: str, revision: str) -> Callable[[], None]:
        """The newest first; on the real Hub a page has 50."""
        repository = self.repository(name)
        lines = repository.git("log", "--format=%H%x09%s", repository.resolve(revision)).decode().splitlines()
        rest = {"date": "2026-01-02T03:04:05.000Z", "message": "", "authors": [{"user": "hub"}]}
        return self.ok([{"id": line.split("\t")[0], "title": line.partition("\t")[2]} | rest for line in lines])

    def validate(self) -> Callable[[], None]:
        return self.ok({"warnings": [], "errors": []})

    def preupload(self, name: str, revision: str) -> Callable[[], None]:
        repository = self.writable(name)
        tree = repository.tree(repository.resolve(revision))
        files = []
        for path in (file["path"] for file in self.json()["files"]):
            oid = (
                (self.hub.lfs_info(repository, *tree[path]) or {"oid": tree[path][0]})["oid"] if path in tree else None
            )
            mode = "lfs" if path.endswith(LFS_SUFFIXES) else "regular"
            files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return self.ok({"files": files})

    def lfs_batch(self, name: str) -> Callable[[], None]:
        self.writable(name)
        objects = [
            entry
            if entry["oid"] in self.hub.objects
            else entry | {"actions": {"upload": {"href": f"{self.hub.storage}/{entry['oid']}"}}}
            for entry in self.json()["objects"]
        ]
        return self.ok({"transfer": "basic", "objects": objects})

    def commit(self, name: str, revision: str) -> Callable[[], None]:
        repository = self.writable(name)
        header: Json = {}
        files: dict[str, bytes] = {}
        deleted = []
        for line in map(json.loads, self.body.splitlines()):
            value = line["value"]
            match line["key"]:
                case "header":
                    header = value
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    arrived = value["oid"] in self.hub.objects or self.hub.xet_folder.exists()
                    assert arrived, "a large file was committed before it was uploaded"
                    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{value['oid']}\n"
                    files[value["path"]] = f"{pointer}size {value['size']}\n".encode()
                case "deletedFile":
                    deleted.append(value["path"])
        with repository.lock:
            if header.get("parentCommit") not in (None, repository.resolve(revision)):
                raise RefusalError(412, message="the branch has moved on")
            oid = repository.commit(revision, files, deleted, header["summary"])
        return self.ok({"success": True, "commitOid": oid, "commitUrl": f"{self.hub.endpoint}/{name}/commit/{oid}"})

    def xet_token(self, name: str, revision: str) -> Callable[[], None]:
        self.writable(name).resolve(revision)
        values = {"casUrl": self.hub.xet_storage, "accessToken": "xet", "exp": 2**40}
        names = ("X-Xet-Cas-Url", "X-Xet-Access-Token", "X-Xet-Token-Expiration")
        headers = {header: str(value) for header, value in zip(names, values.values(), strict=True)}
        return lambda: self.answer(200, values, headers)

    def info(self, name: str, revision: str = "main") -> Callable[[], None]:
        repository = self.repository(name)
        commit = repository.resolve(revision)
        siblings = [{"rfilename": path} for path in repository.tree(commit)]
        name = name.partition("/")[2]
        return self.ok({"id": name, "sha": commit, "private": repository.private, "siblings": siblings, "tags": []})

    def tree(self, name: str, revision: str, below: str = "") -> Callable[[], None]:
        repository = self.repository(name)
        tree = repository.tree(repository.resolve(revision))
        prefix = f"{below.strip('/')}/" if below else ""
        paths = [path for path in tree if path.startswith(prefix)]
        if prefix and not paths:
            raise RefusalError(404, "EntryNotFound", f"no folder {below}")
        if "recursive=true" in self.path.lower():
            paths += {
                folder
                for path in paths
                for folder in map(str, PurePosixPath(path).parents)
                if folder.startswith(prefix)
            } - {"."}
        else:
            paths = [*{prefix + path.removeprefix(prefix).split("/")[0] for path in paths}]
        return self.ok([self.entry(repository, tree, path) for path in sorted(paths)])

    def entry(self, repository: Repository, tree: dict[str, tuple[str, int]], path: str) -> Json:
        """A file or folder as `tree` and `paths-info` tell it."""
        if path not in tree:
            return {"type": "directory", "path": path, "oid": "0" * 40, "size": 0}
        blob, size = tree[path]
        lfs = self.hub.lfs_info(repository, blob, size)
        entry = {"type": "file", "path": path, "oid": blob, "size": lfs["size"] if lfs else size}
        return entry | ({"lfs": lfs} if lfs else {})

    def paths_info(self, name: str, revision: str) -> Callable[[], None]:
        repository = self.repository(name)
        tree = repository.tree(repository.resolve(revision))
        if "json" in self.headers.get("Content-Type", ""):
            paths = self.json()["paths"]
        else:
            paths = parse_qs(self.body.decode())["paths"]
        there = [path for path in paths if path in tree or any(file.startswith(f"{path}/") for file in tree)]
        return self.ok([self.entry(repository, tree, path) for path in there])

    def file(self, name: str, revision: str, path: str) -> Callable[[], None]:
        repository = self.repository(name)
        commit = repository.resolve(revision)
        headers = {"X-Repo-Commit": commit}
        entry = repository.tree(commit).get(path)
        if entry is None:
            return lambda: self.answer(404, {}, headers | {"X-Error-Code": "EntryNotFound"})
        lfs = self.hub.lfs_info(repository, *entry)
        if lfs is None:
            return lambda: self.answer(200, repository.read(entry[0]), headers | {"ETag": f'"{entry[0]}"'})
        headers |= {"X-Linked-Etag": f'"{lfs["oid"]}"', "X-Linked-Size": str(lfs["size"])}
        return lambda: self.answer(302, b"", headers | {"Location": f"{self.hub.storage}/{lfs['oid']}"})


NAME = r"(?P<name>(models|datasets)/[^/]+/[^/]+)"
PLAIN = r"(?P<name>(datasets/)?[^/]+/[^/]+)"
ROUTES: list[tuple[str, Callable[..., Callable[[], None]]]] = [
    (r"POST /api/repos/create", ApiHandler.create),
    (r"POST /api/validate-yaml", ApiHandler.validate),
    (rf"GET /api/{NAME}/auth-check/write", ApiHandler.authorize),
    (rf"POST /api/{NAME}/branch/(?P<branch>.+)", ApiHandler.branch),
    (rf"POST /api/{NAME}/tag/(?P<revision>.+)", ApiHandler.tag),
    (rf"DELETE /api/{NAME}/tag/(?P<tag>.+)", ApiHandler.untag),
    (rf"POST /api/{NAME}/preupload/(?P<revision>.+)", ApiHandler.preupload),
    (rf"POST /{PLAIN}\.git/info/lfs/objects/batch", ApiHandler.lfs_batch),
    (rf"POST /api/{NAME}/commit/(?P<revision>.+)", ApiHandler.commit),
    (rf"GET /api/{NAME}/xet-write-token/(?P<revision>.+)", ApiHandler.xet_token),
    (rf"GET /api/{NAME}/revision/(?P<revision>.+)", ApiHandler.info),
    (rf"GET /api/{NAME}/commits/(?P<revision>.+)", ApiHandler.commits),
    (rf"POST /api/{NAME}/paths-info/(?P<revision>.+)", ApiHandler.paths_info),
    (rf"GET /api/{NAME}/tree/(?P<revision>[^/]+)(/(?P<below>.*))?", ApiHandler.tree),
    (rf"GET /api/{NAME}", ApiHandler.info),
    (rf"(GET|HEAD) /{PLAIN}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", ApiHandler.file),
]
