# SPDX-License-Identifier: Apache-2.0
"""TensorRT-LLM, the example connector: one flat directory of decimal names; skipped when Path.exists; torch.save in
place (a zip archive written as a stream, its directory last); torch.load seeks to the end first. Lookups stop at the
first miss."""

import io
import os
import pathlib
import zipfile

from engine_client import Engine, main


class Stream(io.RawIOBase):
    """torch's writer never seeks back; zipfile does where it can."""

    def __init__(self, file):
        self.file = file

    def writable(self):
        return True

    def write(self, data):
        return self.file.write(data)


class TensorrtLlm(Engine):
    def start(self):
        self.makedirs(self.root)

    def path(self, block):
        return os.path.join(self.root, f"{int(block.hash[:15], 16)}.pt")

    def files(self, block):
        return [self.path(block)]

    def store(self, block, data):
        path = self.path(block)
        if self.calls("exists", pathlib.Path(path).exists):
            return
        with self.calls("open", open, path, "wb") as file:
            with zipfile.ZipFile(Stream(file), "w", zipfile.ZIP_STORED) as archive:
                archive.writestr(zipfile.ZipInfo("archive/data.pkl"), b"pickle")
                archive.writestr(zipfile.ZipInfo("archive/byteorder"), b"little")
                archive.writestr(zipfile.ZipInfo("archive/data/0"), data)
                archive.writestr(zipfile.ZipInfo("archive/version"), b"3\n")

    def lookup(self, blocks):
        found = []
        for block in blocks:
            found.append(self.calls("exists", pathlib.Path(self.path(block)).exists))
            if not found[-1]:
                break
        return found

    def load(self, block):
        try:
            file = self.calls("open", open, self.path(block), "rb")
        except FileNotFoundError:
            return None
        with file, zipfile.ZipFile(file) as archive:
            return self.calls("zip", archive.read, "archive/data/0")


main(TensorrtLlm)
