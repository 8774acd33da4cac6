"""What a key of a team's store allows, and what it refuses."""

from __future__ import annotations

import psycopg
import pytest

from fleet_tune.base.errors import RecordStoreError, RequestError, ServerError, StoreUnreachableError
from fleet_tune.base.records.sharing.postgres import TeamStore
from fleet_tune.base.records.sharing.store_place import place_of
from fleet_tune.store_server.keys import keys, put_key, remove_key
from fleet_tune.store_server.server_folder import OWNER
from tests.helpers.team_server import CONV, Served, emptied, of

pytestmark = pytest.mark.timeout(120)


def test_keys_quotas_and_what_they_refuse(served: Served) -> None:
    served.empty()
    path = put_key(served.folder, "carol", 2, 1)
    assert path.stat().st_mode & 0o777 == 0o600
    url = place_of(f"@{path}").server
    with TeamStore(url) as store:
        store.put_task(CONV)
        assert store.add([of("a", "1", 1e-3), of("a", "2", 2e-3)]) == 2
        with pytest.raises(RecordStoreError, match=r"the quota of the store .* is used up: the key carol may have 2"):
            store.add([of("a", "3", 1e-3)])
        with pytest.raises(RecordStoreError, match="refuses this: permission denied") as caught:
            store.remove(["1"])
        assert not isinstance(caught.value, StoreUnreachableError)
        with pytest.raises(RecordStoreError, match="too many connections"):
            TeamStore(url)
    (found,) = [each for each in keys(served.folder) if each.name == "carol"]
    assert (found.records, found.most_records, found.connections) == (2, 2, 1)
    put_key(served.folder, "carol", None, None)
    assert served.folder.key_of("carol") == url, "other limits, the same key"
    with TeamStore(url) as store:
        assert store.add([of("a", "3", 1e-3)]) == 1
    user, _, rest = url.rpartition("@")
    with pytest.raises(RecordStoreError, match="refuses this key"):
        TeamStore(f"{user}x@{rest}")
    with pytest.raises(RecordStoreError, match="refuses this key"):
        TeamStore(f"{url.rpartition('/')[0]}/postgres")
    remove_key(served.folder, "carol")
    with pytest.raises(RecordStoreError, match="refuses this key"):
        TeamStore(url)
    with pytest.raises(ServerError, match="no name of a key"):
        put_key(served.folder, 'x"; DROP', None, None)
    path.write_text(url)
    path.chmod(0o644)
    with pytest.raises(RequestError, match="others may read"):
        place_of(f"@{path}")
    path.unlink()


def test_a_key_that_is_removed_ends_its_sessions(served: Served) -> None:
    with emptied(served), TeamStore(served.address("dora")) as store:
        store.put_task(CONV)
        remove_key(served.folder, "dora")
        with pytest.raises(StoreUnreachableError):
            store.last()
    assert "dora" not in [each.name for each in keys(served.folder)]
    with TeamStore(served.address("dora")) as store:
        assert store.add([of("a", "1", 1e-3)]) == 1, "the name is free again"


_AS_BEFORE = """
CREATE OR REPLACE FUNCTION fleet_tune.check_quota() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = fleet_tune AS $$
DECLARE most bigint;
BEGIN
    SELECT records INTO most FROM quotas WHERE role = session_user;
    RETURN NULL;
END $$
"""
_GRAB = """
CREATE FUNCTION pg_temp.grab() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    ALTER ROLE alice SUPERUSER;
    RETURN 1000;
END $$;
CREATE TEMP VIEW quotas AS SELECT session_user::text AS role, pg_temp.grab() AS records;
CREATE TEMP VIEW records AS SELECT session_user::text AS added_by, pg_temp.grab() AS records;
"""


@pytest.mark.parametrize("version", ["this", "before"])
def test_a_key_does_not_borrow_the_owners_rights(served: Served, version: str) -> None:
    served.empty()
    owner, url = served.folder.key_of(OWNER), served.address("alice")
    with psycopg.connect(owner, autocommit=True) as connection:
        if version == "before":
            connection.execute(_AS_BEFORE)
            TeamStore(url).close()  # whose it is not cannot mend it, and goes on
            TeamStore(owner).close()
        connection.execute("GRANT TEMP ON DATABASE fleet_tune TO alice")  # as everybody has it on other servers
        try:
            with TeamStore(url) as store:
                store._connection.execute(_GRAB)
                store.put_task(CONV)
                assert store.add([of("a", "1", 1e-3)]) == 1
            query = "SELECT rolsuper FROM pg_roles WHERE rolname = 'alice'"
            assert connection.execute(query).fetchone() == (False,)
        finally:
            connection.execute("ALTER ROLE alice NOSUPERUSER")
            connection.execute("REVOKE TEMP ON DATABASE fleet_tune FROM alice")
