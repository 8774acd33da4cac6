"""Templates of HTML pages."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def templates_of(package: str) -> Environment:
    """Return the templates in the folder ``templates`` of a package. Texts are escaped, and a missing value is an
    error."""
    return Environment(
        loader=PackageLoader(package, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
