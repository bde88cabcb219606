#!/bin/bash -p
# Starts gflow's command line with `python -I -S`: no site, no environment, one cached module. bash, because dash
# drops exported functions of bash (`module`) from the environment; -p, because none of them is to run here.
# If the package is not a plain folder next to this script (editable installs), use `python -m gflow`.
me=$0
[ -L "$me" ] && me=$(readlink -f "$me")
bin=${me%/*}
for site in "$bin"/../lib/python3*/site-packages; do
  if [ -f "$site/gflow/entry.py" ]; then
    exec "$bin/python3" -I -S -X utf8 -c 'import sys;s=sys.argv;sys.path.append(s.pop(1));from gflow.entry import main;main(s.pop(1))' "$site" "${0##*/}" "$@"
  fi
done
exec "$bin/python3" -m gflow "${0##*/}" "$@"
