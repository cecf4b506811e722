"""The cache of vLLM releases."""

from .cache import FetchResult, Release, cache_dir, cached, fetch, installed, locate
from .version import VllmCacheError, parse_version
from .wheel import KEY_FILE, MARKER

__all__ = [
    "KEY_FILE",
    "MARKER",
    "FetchResult",
    "Release",
    "VllmCacheError",
    "cache_dir",
    "cached",
    "fetch",
    "installed",
    "locate",
    "parse_version",
]
