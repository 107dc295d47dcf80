"""Form bodies: the generated code for a contract with uploads, and the bytes on the wire."""

from __future__ import annotations

import copy
import datetime
import http.server
import importlib
import io
import threading
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import HTTP
from pathlib import Path
from typing import Any

import pytest
from support.cases import for_each
from support.pet_contract import put
from tinker_wire.runtime import Request, form_body

import tinker
from tinker._http import retry
from tinker._runtime import run
from tinker._wire import INLINE_NBYTES, as_pieces

FORM = "components/schemas/PhotoForm/properties"
POST = "paths/~1api~1v1~1albums~1{album_id}~1photos/post"
CONTENT = f"{POST}/requestBody/content"


def parse(body: Any) -> list[tuple[str, str | None, str, bytes]]:
    """Name, filename, media type and content of each part, as another program reads them."""
    return parse_bytes(body.media_type, b"".join(body.content))


def parse_bytes(media_type: str, content: bytes) -> list[tuple[str, str | None, str, bytes]]:
    message = BytesParser(policy=HTTP).parsebytes(
        f"Content-Type: {media_type}\r\n\r\n".encode() + content
    )
    assert isinstance(message, EmailMessage)
    return [
        (
            part.get_param("name", header="content-disposition"),  # type: ignore[misc]
            part.get_filename(),
            part.get_content_type() if "content-type" in part else "",
            part.get_payload(decode=True),
        )
        for part in message.iter_parts()
    ]


def test_a_form_has_a_part_for_each_value(uploads: Any, tmp_path: Path) -> None:
    """Text and numbers are text, records JSON, lists several parts, and None is left out."""
    path = tmp_path / "two.png"
    path.write_bytes(b"second")
    taken = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    form = uploads.models.PhotoForm(
        title="Höhe",
        cover=b"first",
        photos=[
            path,
            io.BytesIO(b"third"),
            uploads.runtime.FilePart(bytearray(b"fourth"), "4.jpg", "image/jpeg"),
        ],
        year=2026,
        taken=taken,
        tags=["a", "b"],
        place=uploads.models.Place(name="x"),
        extra={"n": [1]},
    )
    request = uploads.api.photos.upload_photos(form, album_id="al")
    assert (request.method, request.path, request.reply) == (
        "POST",
        "/api/v1/albums/al/photos",
        uploads.models.PhotoCount,
    )
    assert request.body.nbytes == len(b"".join(request.body.content))
    assert [
        (name, filename, media, bytes(content))
        for name, filename, media, content in parse(request.body)
    ] == [
        ("title", None, "", "Höhe".encode()),
        ("cover", "upload", "application/octet-stream", b"first"),
        ("photos", "two.png", "application/octet-stream", b"second"),
        ("photos", "upload", "application/octet-stream", b"third"),
        ("photos", "4.jpg", "image/jpeg", b"fourth"),
        ("year", None, "", b"2026"),
        ("public", None, "", b"false"),
        ("taken", None, "", b"2026-01-02T00:00:00Z"),
        ("tags", None, "", b"a"),
        ("tags", None, "", b"b"),
        ("place", None, "application/json", b'{"name":"x"}'),
        ("extra", None, "application/json", b'{"n":[1]}'),
    ]
    assert "first" not in repr(request)
    operation = uploads.operations.OPERATIONS["upload_photos"]
    assert (operation.body, operation.request_media_types) == (
        uploads.models.PhotoForm,
        ("multipart/form-data",),
    )


def test_files_are_read_as_they_are_sent(uploads: Any, tmp_path: Path) -> None:
    """A file is read piece by piece as its pieces are asked for, and can be asked for again."""
    chunk = uploads.runtime.FormPieces.CHUNK_NBYTES
    path = tmp_path / "large"
    path.write_bytes(bytes(2 * chunk + 5))
    with path.open("rb") as file:
        file.seek(chunk)
        form = uploads.models.PhotoForm(title="", cover=path, photos=[file])
        body = uploads.runtime.form_body(form)
        content = bytes(range(256)) * (2 * chunk // 256) + b"later"
        path.write_bytes(content)  # of the same size
        for _ in range(2):
            assert max(map(len, body.content)) <= chunk
            assert [part[3] for part in parse(body)][1:3] == [content, content[chunk:]]
        path.write_bytes(content[:-1])
        with pytest.raises(OSError, match="large became shorter while it was sent"):
            list(body.content)
    assert next(iter(body.content[:1])).startswith(b"--")


def test_a_file_that_cannot_be_read_twice_is_read_at_once(uploads: Any) -> None:
    """A pipe or a download has no beginning to go back to, so a second attempt needs it kept."""

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    body = uploads.runtime.form_body(uploads.models.PhotoForm(title="", cover=Pipe(b"once")))
    assert [parse(body)[1][3] for _ in range(2)] == [b"once", b"once"]


def test_names_cannot_end_their_header(uploads: Any) -> None:
    """Quotes and line breaks of a file's name are escaped, those of a media type refused."""
    part = uploads.runtime.FilePart
    body = uploads.runtime.form_body(
        uploads.models.PhotoForm(title="", cover=part(b"x", 'a"\r\nX-Evil: 1', "image/png"))
    )
    assert b'filename="a%22%0D%0AX-Evil: 1"\r\n' in b"".join(body.content)
    with pytest.raises(ValueError, match="the media type of cover cannot hold a line break"):
        uploads.runtime.form_body(
            uploads.models.PhotoForm(title="", cover=part(b"x", "a", "image/png\r\nX-Evil: 1"))
        )


def test_files_as_pairs(uploads: Any) -> None:
    """A name with a content, and a media type, is one file, as for httpx, alone and in a list."""
    pair, triple = ("1.jpg", b"first"), ("2.txt", io.BytesIO(b"second"), "text/plain")
    form = uploads.models.PhotoForm(title="", cover=pair, photos=[triple, pair])
    text = b"".join(bytes(piece) for piece in uploads.runtime.form_body(form).content).decode()
    assert (
        text.count(
            'name="cover"; filename="1.jpg"\r\nContent-Type: '
            "application/octet-stream\r\n\r\nfirst\r\n"
        )
        == 1
    )
    assert (
        text.count('name="photos"; filename="2.txt"\r\nContent-Type: text/plain\r\n\r\nsecond\r\n')
        == 1
    )
    assert text.count('name="photos"; filename="1.jpg"') == 1


def test_what_is_no_file_is_refused(uploads: Any, tmp_path: Path) -> None:
    """Anything but a file, and a file that is not there, is refused before anything is sent."""
    with pytest.raises(
        TypeError, match="cover must be bytes, a path, a file object or a FilePart, got object"
    ):
        uploads.runtime.form_body(uploads.models.PhotoForm(title="", cover=object()))
    with pytest.raises(FileNotFoundError):
        uploads.runtime.form_body(uploads.models.PhotoForm(title="", cover=tmp_path / "nowhere"))


@pytest.mark.parametrize("nbytes", [10, 3 << 20])
def test_forms_are_sent(uploads: Any, tmp_path: Path, nbytes: int) -> None:
    """A form is sent with its length, a large file while it is read, and again on a retry."""
    path = tmp_path / "photo.bin"
    path.write_bytes(bytes(range(250)) * (nbytes // 250 + 1))
    received: list[tuple[str, bytes]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.headers["Content-Type"], content))
            answer = b'{"count": 1}'
            self.send_response(503 if len(received) == 1 else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on the terminal."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            with tinker.ServiceClient(
                base_url=f"http://127.0.0.1:{server.server_port}", api_key="tml-key"
            ) as service:
                form = uploads.models.PhotoForm(title="x", cover=path)
                request = Request(
                    "upload_photos",
                    "POST",
                    "/photos",
                    uploads.models.PhotoCount,
                    body=form_body(form),
                )
                transport = service._runtime().transport
                reply = run(
                    service._runtime(),
                    "upload_photos",
                    lambda _: transport.send(request, retry.REST),
                ).result(30)
                assert reply.value.count == 1
        finally:
            server.shutdown()
            thread.join()
    first, second = (parse_bytes(*one) for one in received)
    assert first == second
    assert [part[:2] for part in first] == [
        ("title", None),
        ("cover", "photo.bin"),
        ("public", None),
    ]
    assert first[1][3] == path.read_bytes()
    # and so nothing of it is kept
    assert (as_pieces(request.body.content)[0] is request.body.content) == (nbytes > INLINE_NBYTES)


# ----------------------------------------------------------------------------------------- refusals

REFUSALS = [
    (
        f"{CONTENT}/application~1json",
        {"schema": {"$ref": "#/components/schemas/Place"}},
        "multipart/form-data stands alone",
    ),
    (f"{CONTENT}/multipart~1form-data", {}, "schema is missing"),
    (
        f"{CONTENT}/multipart~1form-data/schema",
        {"type": "object", "properties": {}},
        "unnamed body",
    ),
    (f"{FORM}/cover/type", ["string", "null"], "one that may be missing is not required"),
    (f"{FORM}/cover/maxLength", 5, "a file does not understand maxLength"),
    (f"{FORM}/photos/minItems", 1, "a list of files does not understand minItems"),
    (f"{FORM}/year", {"type": ["integer", "null"]}, "a form has no null"),
    (f"{FORM}/year", {"type": "string", "format": "byte"}, "in a form bytes are a file"),
    (
        "components/schemas/Place/properties/name",
        {"type": "string", "format": "binary"},
        "format 'binary' of a string",
    ),
    (
        "components/schemas/PhotoCount/properties/form",
        {"$ref": "#/components/schemas/PhotoForm"},
        "and nothing else",
    ),
    (
        f"{POST}/x-client",
        [{"client": "rest", "name": "upload_photos", "summary": "Upload."}],
        "PhotoForm is a form; write this method by hand",
    ),
]


@for_each("pointer, value, reason", REFUSALS)
def test_what_a_form_cannot_hold_is_refused(
    contract: Any, tmp_path: Path, pointer: str, value: object, reason: str
) -> None:
    """Everything that has no one spelling in a form, is a form and something else, or, as a client
    method, would know no files.
    """
    document = copy.deepcopy(contract)
    put(document, pointer, value)
    refusals = importlib.import_module("codegen.bindings").generate(document, tmp_path / "none")
    assert any(reason in str(refusal) for refusal in refusals), refusals
