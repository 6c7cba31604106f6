# Supervises one server: supervisor.sh FOLDER STOP-SIGNAL SERVER [ARGUMENT...], started with `sh -c`.
#
# Orders come line by line on standard input; each is answered by one line. The end of the input means that the process that
# uses the server has ended: then the server is killed and the folder removed, whatever happened before.
folder=$1 gently=$2
shift 2
pid=
keep=

end() {
    [ -n "$pid" ] || return 0
    kill -s "$1" "$pid" 2>/dev/null
    # A server that does not stop within a minute is killed, so that no test waits forever. `jobs` collects one that has ended.
    rounds=600
    while [ $rounds -gt 0 ] && jobs >/dev/null && kill -0 "$pid" 2>/dev/null; do
        sleep 0.1
        rounds=$((rounds - 1))
    done
    kill -s KILL "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
    # Processes that the server has left in its group (Erlang's epmd).
    kill -s KILL -- "-$pid" 2>/dev/null
    pid=
}

# Handled, not ignored: the server would inherit ignored signals. PIPE comes when the process that gave the order has ended.
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
        keep) keep=1 ;;
        alive)
            # `jobs` collects a server that has ended; until then its process id still counts as alive.
            jobs >/dev/null
            kill -0 "$pid" 2>/dev/null || answer=no
            ;;
    esac
    echo "$answer"
done

# PostgreSQL ends all its processes on QUIT. One signal is not enough: a server that was only just started still ignores it, as
# every background process of a shell does. A server that does not end is killed.
if [ "$gently" = INT ]; then
    rounds=100
    while [ -n "$pid" ] && [ $rounds -gt 0 ] && jobs >/dev/null && kill -s QUIT "$pid" 2>/dev/null; do
        sleep 0.1
        rounds=$((rounds - 1))
    done
fi
end KILL
[ -z "$keep" ] || exit 0
cd /
# A process that is still dying may write into the folder while it is removed.
rounds=100
until rm -rf "$folder" 2>/dev/null || [ $rounds -eq 0 ]; do
    sleep 0.1
    rounds=$((rounds - 1))
done
