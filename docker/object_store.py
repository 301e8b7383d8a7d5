"""Runs an object store (S3Proxy) over a folder: what the containers keep their lake in under the profile `objectstore`, and what tests use.

AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… python docker/object_store.py --folder /srv/store --bucket weir --host 127.0.0.1 --port 9000
"""

import argparse
import os
from pathlib import Path

from weir.jars import fetch_store
from weir.lake_files import write_whole
from weir.processes import find_java

SETTINGS = """\
s3proxy.endpoint=http://{host}:{port}
s3proxy.authorization=aws-v2-or-v4
s3proxy.identity={identity}
s3proxy.credential={credential}
jclouds.provider=filesystem
jclouds.filesystem.basedir={folder}
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9000)
    given = parser.parse_args()
    jar, folder = fetch_store(), given.folder.resolve()
    (folder / "buckets" / given.bucket).mkdir(parents=True, exist_ok=True)
    settings = SETTINGS.format(
        host=given.host,
        port=given.port,
        identity=os.environ["AWS_ACCESS_KEY_ID"],
        credential=os.environ["AWS_SECRET_ACCESS_KEY"],
        folder=folder / "buckets",
    )
    write_whole(folder / "s3proxy.conf", settings)
    java = find_java()
    os.execv(java, [java, "-Xmx512m", "-jar", str(jar), "--properties", str(folder / "s3proxy.conf")])  # noqa: S606 (a list of arguments that we build)


if __name__ == "__main__":
    main()
