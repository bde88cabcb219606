"""The completion scripts. PROGRAMS stands for the programs they are for."""

BASH = r"""# gflow completion for bash. In ~/.bashrc: eval "$(gflow completion bash)"
_gflow() {
    local line word current=${COMP_WORDS[COMP_CWORD]}
    [[ $current == "=" ]] && current=
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            :files) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
            :commands) mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -c -f -- "$current") ;;
            *) printf -v word %q "${line%%$'\t'*}"; COMPREPLY+=("${word//\\,/,}") ;;
        esac
    done < <(gflow __complete "$COMP_CWORD" "${COMP_WORDS[@]}" 2>/dev/null)
}
complete -F _gflow PROGRAMS
"""

ZSH = r"""#compdef PROGRAMS
# gflow completion for zsh. In ~/.zshrc, after compinit: eval "$(gflow completion zsh)"
_gflow() {
    local line
    local -a found
    for line in "${(@f)$(gflow __complete $((CURRENT - 1)) "${words[@]}" 2>/dev/null)}"; do
        case $line in
            '') ;;
            :files) _files ;;
            :commands) _command_names -e; _files ;;
            *$'\t'*) found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
            *) found+=("${line//:/\\:}") ;;
        esac
    done
    if (( $#found )); then _describe -V gflow found; fi
}
compdef _gflow PROGRAMS
"""

FISH = r"""# gflow completion for fish. In ~/.config/fish/config.fish: gflow completion fish | source
function __gflow_complete
    set -l words (commandline -opc) (commandline -ct)
    for line in (gflow __complete (math (count $words) - 1) $words 2>/dev/null)
        switch $line
            case ':files'
                __fish_complete_path (commandline -ct)
            case ':commands'
                __fish_complete_command
            case '*'
                echo $line
        end
    end
end
for program in PROGRAMS
    complete -c $program -f -a '(__gflow_complete)'
end
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
