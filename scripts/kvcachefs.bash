# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Completion for bash. The names come from "kvcachefs --help", so they are always those of the installed program.

# _kvcachefs_help TITLE: the first words below the line that begins with TITLE, up to an empty line.
_kvcachefs_help() {
	"${COMP_WORDS[0]}" --help 2>/dev/null |
		awk -v title="$1" 'index($0, title) == 1 { on = 1; next } !NF { on = 0 } on'
}

_kvcachefs_words() {
	case $1 in
	--io-mode) echo auto passthrough direct ;;
	--l2-adapter) _kvcachefs_help "L2 adapters" | awk '/^  [^ ]/ && $1 != "every" { print "type=" $1 }' ;;
	--l2-store-policy) _kvcachefs_help "Store policies" | awk '{ print $1 }' ;;
	--l2-prefetch-policy) _kvcachefs_help "Prefetch policies" | awk '{ print $1 }' ;;
	--eviction-policy) _kvcachefs_help "Eviction policies" | awk '{ print $1 }' ;;
	esac
}

# What -o takes: the options of FUSE and mount(8) that are of use here, and ours that have a value.
_kvcachefs_mount_options() {
	echo ro rw allow_other default_permissions auto_unmount fsname= \
		noatime atime nodev dev noexec exec nosuid suid sync async dirsync
	_kvcachefs_help Options: | grep -oE -- '--[a-z0-9-]+=' | sed 's/^--//; /^options=$/d'
}

# _kvcachefs_is_mount_option: is the word at the cursor (of) what -o takes? "-o a=b,c=d" is six words here.
_kvcachefs_is_mount_option() {
	local i=$COMP_CWORD
	while ((i > 1)) && [[ ${COMP_WORDS[i]} == "=" || ${COMP_WORDS[i - 1]} == "=" ]]; do
		i=$((i - 1))
	done
	[[ ${COMP_WORDS[i]} == --options || ${COMP_WORDS[i - 1]} == @(-o|--options) ]]
}

# _kvcachefs_complete_mount_option WORD: the last one of a list; nothing for a value.
_kvcachefs_complete_mount_option() {
	local head=
	if [[ $1 == *,* ]]; then
		head=${1%,*},
	elif [[ ${COMP_WORDS[COMP_CWORD]} == "=" || ${COMP_WORDS[COMP_CWORD - 1]} == "=" ]]; then
		# Of "--options=x" it is the first word behind the "=".
		local i=$COMP_CWORD
		[[ ${COMP_WORDS[i]} == "=" ]] || i=$((i - 1))
		[[ ${COMP_WORDS[i - 1]} == --options ]] || return
	fi
	mapfile -t COMPREPLY < <(compgen -P "$head" -W "$(_kvcachefs_mount_options)" -- "${1##*,}")
}

_kvcachefs() {
	local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]}
	# "--io-mode=x" is three words here.
	if [[ $word == "=" ]]; then
		word=
	elif [[ $option == "=" ]]; then
		option=${COMP_WORDS[COMP_CWORD - 2]}
	fi
	COMPREPLY=()
	if _kvcachefs_is_mount_option; then
		_kvcachefs_complete_mount_option "$word"
		return
	fi
	case $option in
	type)
		# "--l2-adapter type=x": "=" splits this one as well.
		mapfile -t COMPREPLY < <(compgen -W "$(_kvcachefs_words --l2-adapter)" -- "type=$word")
		COMPREPLY=("${COMPREPLY[@]#type=}")
		;;
	--io-mode | --l2-adapter | --*-policy)
		mapfile -t COMPREPLY < <(compgen -W "$(_kvcachefs_words "$option")" -- "$word")
		;;
	--config)
		compopt -o filenames 2>/dev/null
		mapfile -t COMPREPLY < <(compgen -f -- "$word")
		;;
	--state-dir)
		compopt -o filenames 2>/dev/null
		mapfile -t COMPREPLY < <(compgen -d -- "$word")
		;;
	*)
		if [[ $word == -* ]]; then
			mapfile -t COMPREPLY < <(compgen -W "$(_kvcachefs_help Options: |
				grep -oE -- '(^|[ ,])--?[a-zA-Z][a-z0-9-]*')" -- "$word")
		else
			compopt -o filenames 2>/dev/null
			mapfile -t COMPREPLY < <(compgen -d -- "$word")
		fi
		;;
	esac
}

complete -o nospace -F _kvcachefs kvcachefs mount.kvcachefs
