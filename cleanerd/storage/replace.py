"""Replace the content of a small file; after a crash or power failure it has the old or the new content.

The temporary file is not Kafka's `<name>.tmp`: left behind by another user, that one would keep a broker from writing its
own (spec disk A7).
"""

import os

from cleanerd.env.files import Files
from cleanerd.format.names import Suffix


def replace_file(files: Files, path: str, content: bytes, like: str | None) -> None:
    """Create or replace `path`, if it is a broker's with `.lock` held. Raises OSError; the old file is there then.

    1. Write everything to `<path>.cleanerd`, with owner and permissions of the old file, or of `like`, if there
       is one; sync it.
    2. Rename it over the old one; sync the directory.
    A crash leaves the old or the new file, and at most a temporary one that no broker looks at.
    """
    temporary = f"{path}{Suffix.STAGED.value}"
    files.write(temporary, content, path if files.exists(path) else like)
    files.fsync(temporary)
    files.rename(temporary, path)
    files.fsync_dir(os.path.dirname(path))
