# Sourced by scripts of this folder: unpack a Debian package without installing it.
#
#   unpack PACKAGE FOLDER   download PACKAGE and put its `usr` into FOLDER; ends the script on failure
#
# Needs no root. The script defines `fail`.

unpack() {
    local package=$1 folder=$2
    command -v apt-get >/dev/null || fail "$package is not installed, and this is not Debian"
    mkdir -p "$folder" 2>/dev/null && [[ -w $folder ]] || fail "$folder is not writable: set CACHE to another folder"
    echo "unpacking the Debian package $package into $folder (once)" >&2
    [[ $(id -u) != 0 ]] || apt-get update -qq >&2 || echo "apt-get update failed; continuing with the package lists on this machine" >&2
    fresh=$(mktemp -d "$folder/fresh.XXXXXX")
    trap 'rm -rf "$fresh"' EXIT
    (cd "$fresh" && apt-get download -qq "$package" >&2 2>apt.log) || { cat "$fresh/apt.log" >&2; fail "the Debian package $package could not be fetched"; }
    dpkg-deb -x "$fresh/${package}"_*.deb "$fresh/x"
    rm -rf "$folder/usr"
    mv "$fresh/x/usr" "$folder/usr"
}
