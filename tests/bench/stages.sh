# What the measurements of pipelines share: bench_pipeline.sh and pipeline_table.sh source it.

# quartiles: the median, and the first and the third quartile, of numbers
quartiles() {
    sort -n | awk '
        function at(q, i) { i = 1 + q * (NR - 1); return v[int(i)] + (i - int(i)) * (v[int(i) + (i > int(i))] - v[int(i)]) }
        { v[NR] = $1 }
        END { printf "%.4f %.4f %.4f\n", at(0.5), at(0.25), at(0.75) }'
}

# waits FILE: of each step on the time line between two barriers, the fraction in which a stage is idle: it waits for what the
# other one has not sent, or for its end of the step. Then the fraction that the messages take, and what each stage computes,
# in ms.
waits() {
    sed -n 's/.*"name": "\([^"]*\)", "cat": "collective".*"pid": \([0-9]*\),.*"ts": \([0-9.]*\), "dur": \([0-9.]*\).*/\2 \1 \3 \4/p' "$1" |
        sort -k1,1n -k3,3n | awk '
            { n = ++events[$1]; what[$1, n] = $2; at[$1, n] = $3; took[$1, n] = $4 }
            # The calls of this name in the events `from` to `to`: how many, and where.
            function count(rank, from, to, name,   i, n) {
                for (i = from; i <= to; i++)
                    if (what[rank, i] == name)
                        place[rank, name, ++n] = i
                return n
            }
            # The last call of a stage goes with the last one of the other, and so on backward. Until the other stage has begun
            # its call there is nothing to compute; what a call takes from then on is the handling of a message.
            function meet(rank, name, other, n, m,   k, i, late) {
                for (k = 0; k < n && k < m; k++) {
                    i = place[rank, name, n - k]
                    late = at[1 - rank, place[1 - rank, other, m - k]] - at[rank, i]
                    idle += late < 0 ? 0 : late < took[rank, i] ? late : took[rank, i]
                }
            }
            function bounds(rank,   i, n) {
                for (i = 1; i <= events[rank]; i++)
                    if (what[rank, i] == "barrier")
                        end[rank, ++n] = i
                return n
            }
            END {
                steps = bounds(0)
                if (bounds(1) != steps)
                    exit 1
                split("recv send barrier bcast bcast_bytes", names, " ")
                for (step = 4; step <= steps; step++) {
                    idle = calls = all = 0
                    for (r = 0; r < 2; r++) {
                        from = end[r, step - 1] + 1
                        to = end[r, step]
                        wall[r] = at[r, to] + took[r, to] - at[r, from - 1] - took[r, from - 1]
                        all += wall[r]
                        wait[r] = 0
                        for (i = from; i <= to; i++)
                            wait[r] += took[r, i]
                        calls += wait[r]
                        for (k in names)
                            calls_of[r, names[k]] = count(r, from, to, names[k])
                    }
                    for (r = 0; r < 2; r++) {
                        meet(r, "recv", "send", calls_of[r, "recv"], calls_of[1 - r, "send"])
                        for (k = 3; k <= 5; k++)
                            meet(r, names[k], names[k], calls_of[r, names[k]], calls_of[1 - r, names[k]])
                    }
                    print idle / all, (calls - idle) / all, (wall[0] - wait[0]) / 1e3, (wall[1] - wait[1]) / 1e3
                }
            }'
}
