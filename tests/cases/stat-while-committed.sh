#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Who has a temporary file open sees its size at every moment of the rename that commits it, with passthrough and
# without: there a smaller one would end mappings as well.

. "$(dirname "$0")/lib.sh"

require_cmd python3

for mode in "${IO_MODES[@]}"; do
	start_fs "--io-mode=$mode"
	mkdir -p "$MNT/plain"
	python3 - "$MNT/plain" <<-'PYTHON' || fail "--io-mode=$mode"
		import os, sys, threading

		size = 4 << 20
		temporary = os.path.join(sys.argv[1], "f.tmp")
		seen = set()

		def look(fd, ended):
		    while not ended.is_set():
		        seen.add(os.fstat(fd).st_size)
		    seen.add(os.fstat(fd).st_size)

		for i in range(80):
		    with open(temporary, "wb") as file:
		        file.write(bytes(size))
		    fd = os.open(temporary, os.O_RDONLY)
		    ended = threading.Event()
		    thread = threading.Thread(target=look, args=(fd, ended))
		    thread.start()
		    os.rename(temporary, os.path.join(sys.argv[1], f"f{i}"))
		    ended.set()
		    thread.join()
		    os.close(fd)
		sys.exit(seen != {size} and f"sizes seen: {sorted(seen)}")
	PYTHON
	stop_fs
done
