#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A temporary file that a second process opens with O_TRUNC while the first still has it: each has a file of its own,
# the name means the second's, and what the first does then disturbs nothing.
#
# parallel

. "$(dirname "$0")/lib.sh"

# expect_object NAME SEED BYTES: the object is that seed's data.
expect_object() {
	expect_data "$RANK/$1" "$2" "$3"
}

start_bare
mkdir -p "$RANK"

# The first keeps it open.
x=$RANK/.x.tmp
first=$(chunk_hash first)
begin a
begin b
step a 0 open "$x" rwct
step a 0 write 1 1000
step b 0 open "$x" wct
step b 0 write 2 500
step a 0 check 1 1000
step b 0 close
step b 0 rename "$x" "$RANK/$first"
expect_object "$first" 2 500
step a 0 check 1 1000
step a 0 pwrite 1 1000 0
step a 0 check 1 1000
step a 0 close
expect_object "$first" 2 500
expect_errno ENOENT stat "$x"

# The first has closed it: its bytes are gone with its name.
second=$(chunk_hash second)
step a 0 open "$x" wct
step a 0 write 3 1000
step a 0 close
step b 0 open "$x" wct
step b 0 write 4 500
step b 0 close
expect_object .x.tmp 4 500
step b 0 rename "$x" "$RANK/$second"
expect_object "$second" 4 500

# The first removes the name that is the second's now: the second's file is never an object, and harms nobody.
third=$(chunk_hash third)
step a 0 open "$x" wct
step a 0 write 5 1000
step b 0 open "$x" wct
step b 0 write 6 500
step a 0 close
step a 0 unlink "$x"
step b 0 close
step b ENOENT rename "$x" "$RANK/$third"
expect_errno ENOENT stat "$RANK/$third"

wait_until 10 "what was displaced is gone" status_is l1_objects 2
stop_fs
