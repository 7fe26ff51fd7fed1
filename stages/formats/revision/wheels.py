"""Which build of a library is installed. A version does not say: an index may have several wheels of it, or a new one.

The standard library only: flows/reproduce also loads this file in interpreters that do not have this project.
"""

import hashlib
from importlib.metadata import Distribution

LEFT_OUT = ("/INSTALLER", "/REQUESTED", "/RECORD", "/direct_url.json", ".pyc")
"""What an installer adds to a wheel's files; the scripts that it makes are outside of the library's folder."""


def wheel_digest(library: Distribution) -> str | None:
    """sha256 over the list of a wheel's files with their hashes (RECORD), without what its installation added.

    The same for every installation of one wheel. The files themselves are not read. None where there is no such list.
    """
    listed = library.read_text("RECORD")
    if listed is None:
        return None
    files = [line.rpartition(",")[0] for line in listed.splitlines() if not line.startswith(("../", "/"))]
    own = sorted(entry for entry in files if not entry.partition(",sha256=")[0].rstrip(",").endswith(LEFT_OUT))
    return hashlib.sha256("\n".join(own).encode("utf-8")).hexdigest()
