#!/bin/bash -p
# Starts gflow's command line with `python -I -S`: no site, no environment, one cached module. bash, because dash
# drops exported functions of bash (`module`) from the environment; -p, because none of them is to run here.
# Without an interpreter beside this script (pip install --user), the one whose version the package's folder names.
# If the package is not a plain folder next to this script (editable installs), use `python -m gflow`.
me=$0
[ -L "$me" ] && me=$(readlink -f "$me")
bin=${me%/*}
for site in "$bin"/../lib/python3*/{site,dist}-packages; do
  if [ -f "$site/gflow/entry.py" ]; then
    python=("$bin/python3" -I -S)
    version=${site%/*}
    [ -x "$bin/python3" ] || python=("${version##*/}" -I)
    exec "${python[@]}" -X utf8 -c 'import sys;s=sys.argv;sys.path.append(s.pop(1));from gflow.entry import main;main(s.pop(1))' "$site" "${0##*/}" "$@"
  fi
done
python=$bin/python3
[ -x "$python" ] || python=python3
exec "$python" -m gflow "${0##*/}" "$@"
