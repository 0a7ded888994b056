from big_runs import write_run

from hf_efficient.accounting.account import account_of, account_run
from hf_efficient.run_dir.paths import rank_files
from tests.conftest import read_steps


def test_the_records_are_those_of_a_run(tmp_path):
    size = write_run(tmp_path, steps=1000, ranks=3)
    assert size == sum(path.stat().st_size for path in tmp_path.iterdir())
    read = {rank: list(read_steps(path)) for rank, path in rank_files(tmp_path, "steps").items()}
    assert {rank: len(records) for rank, records in read.items()} == {0: 1000, 1: 1000, 2: 1000}
    for rank, records in read.items():
        assert [record.step for record in records] == list(range(1, 1001))
        assert {record.rank for record in records} == {rank}
        assert all(record.sequences and record.work and record.memory and record.device_seconds for record in records)
        assert 0.0002 < min(record.unattributed_seconds for record in records) < 0.0005
    assert sum(record.loss is not None for record in read[0]) == 100
    account, series = account_of(tmp_path), account_run(tmp_path).series
    assert (account.ended, account.steps.count, len(account.ranks)) == ("done", 1000, 3)
    assert account.tokens.processed == 3 * 1000 * 16384
    samples = len((tmp_path / "system.jsonl").read_text().splitlines())
    assert len(series.system.process) == samples
    assert [part.name for part in account.energy.parts] == ["CPU package 0", "CPU package 1", "GPU 0", "GPU 1", "GPU 2"]
    for part in account.energy.parts:  # 80 to 100% of what a device draws at most
        most = 700.0 if part.name.startswith("GPU") else 250.0
        assert 0.8 * most * (samples - 2) < part.joules < most * samples
