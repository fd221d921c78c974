"""The routes of the Hub's API and files, as the client knows them, over a Store."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from .store import Blob, Commit, PullRequest, Repo, Store, User, is_large
from .xet import files_in


def failure(status: int, said: str, code: str = "", **headers: str) -> JSONResponse:
    more = {"X-Error-Message": said, "X-Request-Id": "loopback"} | ({"X-Error-Code": code} if code else {}) | headers
    return JSONResponse({"error": said}, status, headers=more)


class HubRoutes:
    """What the Hub answers; ``url`` is where it listens, ``ranges`` whether a part of a file can be asked for."""

    store: Store
    url = ""
    ranges = True
    xet: Path | None = None  # the folder in which hf_xet keeps what is sent through it
    originals: dict[str, Path] = {}  # noqa: RUF012

    # --- who may do what -------------------------------------------------------------------------------------------

    def user(self, request: Request) -> User | None:
        return self.store.users.get(request.headers.get("authorization", "").removeprefix("Bearer "))

    def repo(self, request: Request, write: bool = False) -> Repo | Response:
        """The repo of the request, or why its sender may not; unknown and private repos look alike."""
        user, name = self.user(request), request.path_params["repo"]
        if request.headers.get("authorization") and user is None:
            return failure(401, "Invalid credentials in Authorization header")
        repo = self.store.repos.get(name)
        mine = user is not None and name.partition("/")[0] in (user.name, *user.orgs)
        if repo is None or (repo.private and not mine):
            return failure(404 if user else 401, "Repository not found", "RepoNotFound")
        if repo.gated and not mine:
            return failure(403 if user else 401, f"Access to model {name} is restricted", "GatedRepo")
        if write and not (mine and user is not None and user.role != "read"):
            return failure(403, "Forbidden: you must use a write token to upload to a repository.")
        return repo

    def at(self, request: Request, write: bool = False) -> tuple[Repo, Commit] | Response:
        repo = self.repo(request, write)
        if isinstance(repo, Response):
            return repo
        revision = unquote(request.path_params.get("revision", "main"))
        commit = repo.at(revision)
        return (repo, commit) if commit else failure(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    # --- the routes of the API -------------------------------------------------------------------------------------

    async def whoami(self, request: Request) -> Response:
        user = self.user(request)
        if user is None:
            return failure(401, "Invalid username or password.")
        token: dict[str, Any] = {"role": user.role, "displayName": "test"}
        if user.role == "fineGrained":
            entity = {"type": "user", "name": user.name}
            token["fineGrained"] = {"global": [], "scoped": [{"entity": entity, "permissions": ["repo.content.read"]}]}
        orgs = [{"type": "org", "name": org, "roleInOrg": "write"} for org in user.orgs]
        told = {"type": "user", "id": user.name, "name": user.name, "fullname": user.name, "orgs": orgs}
        return JSONResponse(told | {"auth": {"type": "access_token", "accessToken": token}})

    async def create(self, request: Request) -> Response:
        user, asked = self.user(request), await request.json()
        if user is None:
            return failure(401, "Invalid username or password.")
        owner = asked.get("organization") or user.name
        name = f"{owner}/{asked['name']}"
        if user.role == "read" or owner not in (user.name, *user.orgs):
            return failure(403, f'You don\'t have the rights to create a model under the namespace "{owner}"')
        if name in self.store.repos:
            told = {"error": "You already created this model repo", "url": f"{self.url}/{name}"}
            return JSONResponse(told, 409)
        private = asked.get("visibility") == "private" or asked.get("private") is True
        self.store.create(name, private=private)
        return JSONResponse({"url": f"{self.url}/{name}", "name": name, "id": name})

    async def validate_yaml(self, request: Request) -> Response:
        block = re.match(r"^---\r?\n(.*?)\r?\n---", (await request.json())["content"], re.S)
        errors = []
        try:
            told = yaml.safe_load(block[1]) if block else None
        except yaml.YAMLError as error:
            told, errors = None, [str(error)]
        bases = (told or {}).get("base_model") or []
        for base in [bases] if isinstance(bases, str) else bases:
            if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(base)):
                errors.append(f'"base_model" with value "{base}" is not valid')
        if errors:
            return JSONResponse({"errors": [{"message": text} for text in errors], "warnings": []}, 400)
        warnings = [] if told else [{"message": "empty or missing yaml metadata in repo card"}]
        return JSONResponse({"errors": [], "warnings": warnings})

    async def info(self, request: Request) -> Response:
        found = self.at(request)
        if isinstance(found, Response):
            return found
        repo, commit = found
        told = {"id": repo.name, "modelId": repo.name, "sha": commit.sha, "private": repo.private, "tags": []}
        return JSONResponse(told | {"gated": repo.gated, "siblings": [{"rfilename": path} for path in commit.files]})

    async def tree(self, request: Request) -> Response:
        found = self.at(request)
        if isinstance(found, Response):
            return found
        _, commit = found
        folder = request.path_params.get("path", "").strip("/")
        inside = f"{folder}/" if folder else ""
        deep = request.query_params.get("recursive", "").lower() in ("true", "1")
        entries: dict[str, dict[str, Any]] = {}
        for path, blob in sorted(commit.files.items()):
            if not path.startswith(inside):
                continue
            parts = path[len(inside) :].split("/")
            for depth in range(1, len(parts) if deep else min(len(parts), 2)):
                place = inside + "/".join(parts[:depth])
                entries[place] = {"type": "directory", "path": place, "size": 0, "oid": "0" * 40}
            if deep or len(parts) == 1:
                entries[path] = blob.entry(path)
        if folder and not entries:
            return failure(404, f"{folder} does not exist on {commit.sha}", "EntryNotFound")
        return JSONResponse(list(entries.values()))

    async def paths_info(self, request: Request) -> Response:
        found = self.at(request)
        if isinstance(found, Response):
            return found
        body = await request.body()
        asked = json.loads(body)["paths"] if body[:1] == b"{" else parse_qs(body.decode()).get("paths", [])
        return JSONResponse([found[1].files[path].entry(path) for path in asked if path in found[1].files])

    async def refs(self, request: Request) -> Response:
        repo = self.repo(request)
        if isinstance(repo, Response):
            return repo
        branches = [
            {"name": name, "ref": f"refs/heads/{name}", "targetCommit": sha}
            for name, sha in repo.refs.items()
            if not name.startswith("refs/")
        ]
        return JSONResponse({"branches": branches, "converts": [], "tags": []})

    async def branch(self, request: Request) -> Response:
        repo = self.repo(request, write=True)
        if isinstance(repo, Response):
            return repo
        name = unquote(request.path_params["revision"])
        if name in repo.refs:
            return failure(409, f"Reference already exists: refs/heads/{name}")
        start = repo.at((await request.json()).get("startingPoint") or "main")
        if start is None:
            return failure(404, "Invalid rev id", "RevisionNotFound")
        repo.refs[name] = start.sha
        return JSONResponse({})

    async def discussions(self, request: Request) -> Response:
        repo = self.repo(request)
        if isinstance(repo, Response):
            return repo
        author = request.query_params.get("author")
        told = [
            {
                "num": pull.number, "title": pull.title, "author": {"name": pull.author}, "status": "open",
                "createdAt": "2026-01-01T00:00:00.000Z", "isPullRequest": True,
                "repo": {"name": repo.name, "type": "model"},
            }
            for pull in reversed(repo.pulls)
            if author in (None, pull.author)
        ]  # fmt: skip
        return JSONResponse({"discussions": told, "count": len(told), "start": 0})

    # --- pushing ---------------------------------------------------------------------------------------------------

    async def preupload(self, request: Request) -> Response:
        found = self.at(request, write=not request.query_params.get("create_pr"))
        if isinstance(found, Response):
            return found
        told = []
        for file in (await request.json())["files"]:
            mode = "lfs" if is_large(file["path"], file["size"]) else "regular"
            old = found[1].files.get(file["path"])
            known = {"oid": old.sha256 or old.oid} if old else {}
            told.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False} | known)
        return JSONResponse({"files": told})

    async def lfs_batch(self, request: Request) -> Response:
        repo = self.repo(request)
        if isinstance(repo, Response):
            return repo
        objects = []
        for item in (await request.json())["objects"]:
            href = f"{self.url}/large/{item['oid']}"
            known = item["oid"] in self.store.large
            objects.append(item if known else item | {"actions": {"upload": {"href": href}}})
        answer = {"transfer": "basic", "objects": objects}
        return JSONResponse(answer, media_type="application/vnd.git-lfs+json")

    async def lfs_put(self, request: Request) -> Response:
        oid, digest = request.path_params["oid"], hashlib.sha256()
        path = self.store.folder / f"{oid}.{time.monotonic_ns()}"
        with path.open("wb") as file:
            async for block in request.stream():
                digest.update(block)
                file.write(block)
        if digest.hexdigest() != oid:
            return Response("<Error><Code>XAmzContentSHA256Mismatch</Code></Error>", 400, media_type="application/xml")
        self.store.keep_large(path, oid)
        return Response(headers={"ETag": f'"{oid[:32]}"'})

    async def xet_token(self, request: Request) -> Response:
        if self.xet is None:
            return failure(404, "Not Found")
        found = self.at(request, write=request.path_params["kind"] == "write")
        if isinstance(found, Response):
            return found
        told = {"accessToken": "xet", "exp": int(time.time()) + 3600, "casUrl": f"local://{self.xet}"}
        names = {"X-Xet-Access-Token": "accessToken", "X-Xet-Token-Expiration": "exp", "X-Xet-Cas-Url": "casUrl"}
        return JSONResponse(told, headers={header: str(told[key]) for header, key in names.items()})

    def _stored_by_xet(self, sha256: str) -> bool:
        """Whether Xet was sent this file; its bytes are then served from ``originals``, which have the same hash."""
        if self.xet is None or sha256 not in files_in(self.xet) or sha256 not in self.originals:
            return False
        self.store.keep_large(self.originals[sha256], sha256)
        return True

    async def commit(self, request: Request) -> Response:
        proposed = bool(request.query_params.get("create_pr"))
        found = self.at(request, write=not proposed)
        if isinstance(found, Response):
            return found
        repo, head = found
        files, title = dict(head.files), ""
        for line in filter(None, (await request.body()).split(b"\n")):
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "header":
                title = value["summary"]
                if value.get("parentCommit") and value["parentCommit"] != head.sha:
                    return failure(412, "A commit has happened since. Please refresh and try again.")
            elif item["key"] == "file":
                files[value["path"]] = Blob.small(base64.b64decode(value["content"]))
            elif item["key"] == "lfsFile":
                if value["oid"] not in self.store.large and not self._stored_by_xet(value["oid"]):
                    return failure(400, f"LFS pointer pointed to a file that does not exist: {value['oid']}")
                files[value["path"]] = self.store.large[value["oid"]]
            elif item["key"] == "deletedFile":
                files.pop(value["path"], None)
        ref = unquote(request.path_params["revision"])
        more = {}
        if proposed:
            user = self.user(request)
            pull = PullRequest(1 + len(repo.pulls), title, user.name if user else "")
            repo.pulls.append(pull)
            ref = f"refs/pr/{pull.number}"
            repo.refs[ref] = head.sha
            more = {"pullRequestUrl": f"{self.url}/{repo.name}/discussions/{pull.number}"}
        sha = repo.add(ref, files, title).sha
        told = {"success": True, "commitOid": sha, "commitUrl": f"{self.url}/{repo.name}/commit/{sha}"}
        return JSONResponse(told | more)

    # --- reading files ---------------------------------------------------------------------------------------------

    async def file(self, request: Request) -> Response:
        found = self.at(request)
        if isinstance(found, Response):
            return found
        commit, path = found[1], request.path_params["path"]
        blob = commit.files.get(path)
        if blob is None:
            return failure(404, "Entry not found", "EntryNotFound", **{"X-Repo-Commit": commit.sha})
        headers = {"X-Repo-Commit": commit.sha, "ETag": f'"{blob.sha256 or blob.oid}"', "Accept-Ranges": "bytes"}
        if blob.sha256 is None:
            return self._content(request, blob, headers)
        # Large files come from another host, as on the real Hub: it must not be shown the token.
        headers |= {"X-Linked-ETag": f'"{blob.sha256}"', "X-Linked-Size": str(blob.size)}
        if self.xet is not None and (name := files_in(self.xet).get(blob.sha256)):
            refresh = f"{self.url}/api/models/{request.path_params['repo']}/xet-read-token/{commit.sha}"
            headers |= {"X-Xet-Hash": name, "X-Xet-Refresh-Route": refresh}
        elsewhere = self.url.replace("127.0.0.1", "localhost")
        return RedirectResponse(f"{elsewhere}/large/{blob.sha256}", 302, headers=headers)

    async def large_file(self, request: Request) -> Response:
        blob = self.store.large.get(request.path_params["oid"])
        return self._content(request, blob, {"Accept-Ranges": "bytes"}) if blob else failure(404, "no such file")

    def _content(self, request: Request, blob: Blob, headers: dict[str, str]) -> Response:
        start, end, status = 0, blob.size, 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", "")) if self.ranges else None
        if asked is not None:
            start, end, status = int(asked[1]), min(int(asked[2] or blob.size) + 1, blob.size), 206
            if start >= blob.size:
                return Response(status_code=416, headers={"Content-Range": f"bytes */{blob.size}"})
            headers = headers | {"Content-Range": f"bytes {start}-{end - 1}/{blob.size}"}
        headers = headers | {"Content-Length": str(end - start)}
        if request.method == "HEAD":
            return Response(status_code=status, headers=headers)

        async def blocks() -> AsyncIterator[bytes]:
            for at in range(start, end, 1 << 20):
                yield blob.read(at, min(1 << 20, end - at))

        return StreamingResponse(blocks(), status, headers=headers, media_type="application/octet-stream")

    def routes(self) -> Starlette:
        model, repo, rev = "/api/models/{repo:repo}", "/{repo:repo}", "/{revision:revision}"
        return Starlette(routes=[
            Route("/api/whoami-v2", self.whoami),
            Route("/api/repos/create", self.create, methods=["POST"]),
            Route("/api/validate-yaml", self.validate_yaml, methods=["POST"]),
            Route(model, self.info),
            Route(f"{model}/refs", self.refs),
            Route(f"{model}/discussions", self.discussions),
            Route(f"{model}/revision{rev}", self.info),
            Route(f"{model}/tree{rev}", self.tree),
            Route(f"{model}/tree{rev}/{{path:path}}", self.tree),
            Route(f"{model}/paths-info{rev}", self.paths_info, methods=["POST"]),
            Route(f"{model}/branch{rev}", self.branch, methods=["POST"]),
            Route(f"{model}/preupload{rev}", self.preupload, methods=["POST"]),
            Route(f"{model}/commit{rev}", self.commit, methods=["POST"]),
            Route(f"{model}/xet-{{kind}}-token{rev}", self.xet_token),
            Route(f"{repo}.git/info/lfs/objects/batch", self.lfs_batch, methods=["POST"]),
            Route("/large/{oid}", self.lfs_put, methods=["PUT"]),
            Route("/large/{oid}", self.large_file, methods=["GET", "HEAD"]),
            Route(f"{repo}/resolve{rev}/{{path:path}}", self.file, methods=["GET", "HEAD"]),
        ])  # fmt: skip


def register_converters() -> None:
    """Path parts of the routes: a repo is org/name, a revision may be refs/pr/N, quoted or not."""
    from starlette.convertors import StringConvertor, register_url_convertor

    class RepoName(StringConvertor):
        regex = r"[^/]+/[^/]+?"

    class Revision(StringConvertor):
        regex = r"refs/pr/\d+|refs%2Fpr%2F\d+|[^/]+"

    register_url_convertor("repo", RepoName())
    register_url_convertor("revision", Revision())


register_converters()
