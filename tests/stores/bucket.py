"""A bucket of an S3 server, seen past the code under test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Bucket:
    """An empty bucket; objects are addressed by their key below `url`."""

    name: str
    client: Any = field(repr=False)
    prefix: str = "runs/one"

    @property
    def url(self) -> str:
        return f"s3://{self.name}/{self.prefix}"

    def content(self) -> dict[str, bytes]:
        return {key: self.read(key) for key in self.list()}

    def list(self, prefix: str = "") -> set[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.name, Prefix=f"{self.prefix}/{prefix}"
        )
        start = len(self.prefix) + 1
        return {entry["Key"][start:] for page in pages for entry in page.get("Contents", [])}

    def read(self, key: str) -> bytes:
        got = self.client.get_object(Bucket=self.name, Key=f"{self.prefix}/{key}")
        return got["Body"].read()

    def write(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=f"{self.prefix}/{key}", Body=data)

    def remove(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=f"{self.prefix}/{key}")
