class Finder:
    """Find the packages of MAPPING as setuptools' finder does, without its imports (pathlib and
    more): they are half of the time that Python takes to start.

    etc/venv.sh adds the line with MAPPING. Tools for documentation read it.
    """

    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name not in MAPPING:  # type: ignore[name-defined]  # noqa: F821
            return None
        from _frozen_importlib_external import spec_from_file_location

        folder = MAPPING[name]  # type: ignore[name-defined]  # noqa: F821
        return spec_from_file_location(
            name, f"{folder}/__init__.py", submodule_search_locations=[folder]
        )


def install() -> None:
    import sys

    sys.meta_path.append(Finder)
