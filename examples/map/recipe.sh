#!/usr/bin/env bash
# A recipe in the manner of Kaldi's: split the data, run the parts as the jobs of one array, put the results together.
# Unchanged with run.pl, queue.pl, slurm.pl or dlr-queue.pl:  examples/map/recipe.sh --cmd "dlr-queue.pl --mem 1G" DATA EXP
set -e
cmd=run.pl nj=40
while [ $# -gt 2 ]; do
  case "$1" in
    --cmd) cmd=$2; shift 2 ;;
    --nj) nj=$2; shift 2 ;;
    *) echo "$0: unknown option $1" >&2; exit 1 ;;
  esac
done
data=$1 exp=$2

# As utils/split_scp.pl cuts it: equal parts in a row, the first ones longer by a line where it does not come out even.
sdata=$data/split$nj
lines=$(wc -l <"$data/wav.scp")
[ "$lines" -ge "$nj" ] || { echo "$0: $lines lines make no $nj parts: reduce --nj" >&2; exit 1; }
first=1
for n in $(seq "$nj"); do
  last=$((first + lines / nj - 1 + (n <= lines % nj)))
  mkdir -p "$sdata/$n"
  sed -n "$first,${last}p" "$data/wav.scp" >"$sdata/$n/wav.scp"
  first=$((last + 1))
done

mkdir -p "$exp/log"
# As steps/make_mfcc.sh calls it: a word with a space or a | in it reaches the program as one word; what is escaped is the shell's.
$cmd JOB=1:"$nj" "$exp/log/make_mfcc.JOB.log" \
  cat "$sdata/JOB/wav.scp" \| awk '{ print $1, length($2) "-JOB" }' \| tee "$exp/feats.JOB.scp" \| gzip -c \> "$exp/feats.JOB.gz" || exit 1
# As steps/align_si.sh does: commands that a program runs are its arguments, with the job's number in them.
$cmd JOB=1:"$nj" "$exp/log/count.JOB.log" \
  bash -c "gunzip -c $exp/feats.JOB.gz | wc -l >$exp/count.JOB" || exit 1
[ "$(cat "$exp"/count.* | paste -sd+ | bc)" -eq "$lines" ] || { echo "$0: some archives are short" >&2; exit 1; }

for n in $(seq "$nj"); do cat "$exp/feats.$n.scp"; done >"$exp/feats.scp"
[ "$(wc -l <"$exp/feats.scp")" -eq "$lines" ] || { echo "$0: some features are missing" >&2; exit 1; }
# As steps/ and utils/summarize_logs.pl read the logs.
seconds=$(cat "$exp"/log/make_mfcc.*.log | sed -n 's/^# Accounting: time=\([0-9]*\) threads=.*/\1/p' | paste -sd+ | bc)
echo "$0: $lines features in $nj jobs, $seconds seconds in all"
