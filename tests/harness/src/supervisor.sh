# Looks after one server: supervisor.sh FOLDER STOP-SIGNAL SERVER [ARGUMENT...], started with `sh -c`.
#
# Orders come line by line on standard input, each is answered by one line. The end of the input is the end of the process that
# wants the server: then the server is killed and the folder removed, whatever happened before.
folder=$1 gently=$2
shift 2
pid=

end() {
    [ -n "$pid" ] || return 0
    kill -s "$1" "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
    # Helpers that the server has left in its process group (Erlang's epmd).
    kill -s KILL -- "-$pid" 2>/dev/null
    pid=
}

# Not ignored but handled: what is ignored here would be ignored by the server, too. PIPE comes when nobody is left to be answered.
trap : HUP INT TERM PIPE

while read -r order; do
    answer=yes
    case $order in
        start)
            setsid "$@" </dev/null >>"$folder/log" 2>&1 &
            pid=$!
            ;;
        stop) end "$gently" ;;
        kill) end KILL ;;
        alive)
            # `jobs` collects a server that has ended; until then its number would still count as alive.
            jobs >/dev/null
            kill -0 "$pid" 2>/dev/null || answer=no
            ;;
    esac
    echo "$answer"
done

# PostgreSQL takes its processes along on QUIT. One signal is not enough: a server that has only just been started still ignores it,
# as every background process of a shell does. What does not end by itself is killed.
if [ "$gently" = INT ]; then
    rounds=100
    while [ -n "$pid" ] && [ $rounds -gt 0 ] && jobs >/dev/null && kill -s QUIT "$pid" 2>/dev/null; do
        sleep 0.1
        rounds=$((rounds - 1))
    done
fi
end KILL
cd /
rm -rf "$folder"
