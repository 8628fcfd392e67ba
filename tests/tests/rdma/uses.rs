//! A server that evicts is told of one-sided reads.

use sidestep_client::{Client, Options, Path, PathMode};
use sidestep_tests::hot::Load;
use sidestep_tests::process::ServerProcess;

use super::{options, session};

/// With `report-forgotten.patch` or `touch-forgotten.patch` next to none of the keys that are read is there in the end.
#[test]
#[ignore = "needs an RDMA device: scripts/guest"]
fn what_is_read_one_sided_stays() {
    const HOT: u64 = 200;
    let server = ServerProcess::start("127.0.0.1:0", &["--memory", "16MiB", "--evict", "clock"]);
    let mut reader = session(&server, options());
    let tcp = Options::default().path(PathMode::Require(Path::Tcp));
    let mut writer = Client::connect(server.address(), tcp).unwrap().session().unwrap();
    let load = Load { hot: HOT, written: 40_000, between: 500, reads: 8, value_bytes: 900 };
    let kept = load.run(&mut reader, &mut writer);
    let stats = reader.stats().unwrap();
    let (found, reported) = (stats.client("rdma_get_found").unwrap(), stats.client("uses_reported").unwrap());
    println!("{kept:?} of {HOT}, {reported} of {found} reads reported");
    assert!(kept.hot >= HOT / 2 && kept.cold <= HOT / 10, "{kept:?}");
    assert!(found > 40_000 && stats.server("uses_reported") == Some(reported) && reported < found / 16);
}
