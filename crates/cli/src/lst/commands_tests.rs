//! The kernel tool's recorded session, said to a console of ours, and lines that are wrong.

use super::super::console::run_words;
use super::super::session::Wanted;
use super::super::socket::Words;
use super::*;
use coral_lnet::selftest::Selftest;
use coral_lnet::{MemNet, Node, NodeConfig};

struct Bench {
    session: Arc<Session>,
    out: Out,
    server: Arc<Node>,
    st: Arc<Selftest>,
}

impl Bench {
    /// A session whose console is 1@lo, and a server 2@lo.
    async fn new() -> Bench {
        let mem = MemNet::new();
        let start = |nid: &str| {
            Node::start(
                NodeConfig {
                    nids: vec![nid.parse().unwrap()],
                    ..NodeConfig::default()
                },
                Some(mem.clone()),
            )
        };
        let (console, server) = (start("1@lo").await.unwrap(), start("2@lo").await.unwrap());
        let wanted = Wanted::parse_with_key(422, &["--timeout".into(), "100".into(), "t1".into()])
            .ok()
            .unwrap();
        assert_eq!(
            wanted.line(),
            "SESSION: t1 FEATURES: 1 TIMEOUT: 100 FORCE: No"
        );
        let session = Session::new(wanted).unwrap();
        session.attach(console);
        Bench {
            session,
            out: Out::kept(),
            st: Selftest::serve(&server),
            server,
        }
    }

    async fn say(&mut self, line: &str) -> (u8, Vec<String>) {
        let mut words = line.split_whitespace().map(str::to_owned);
        let words = Words {
            command: words.next().unwrap(),
            args: words.collect(),
        };
        let code = run_words(&self.session, &words, &mut self.out).await;
        (code, self.out.take())
    }

    async fn ok(&mut self, line: &str) -> Vec<String> {
        let (code, said) = self.say(line).await;
        assert_eq!(code, 0, "{line}: {said:?}");
        said
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_recorded_session_prints_what_the_kernels_lst_printed() {
    let mut b = Bench::new().await;
    assert_eq!(
        b.ok("add_group servers 2@lo").await,
        ["2@lo are added to session"]
    );
    assert_eq!(
        b.ok("add_group clients 1@lo").await,
        ["1@lo are added to session"]
    );
    assert_eq!(b.ok("add_batch b").await, [""; 0]);
    for test in [
        "--concurrency 4 --from clients --to servers brw read check=simple size=1M",
        "--concurrency 4 --from clients --to servers brw write check=full size=64K",
        "--concurrency 2 --from clients --to servers ping",
    ] {
        assert_eq!(
            b.ok(&format!("add_test --loop 6 --batch b {test}")).await,
            ["Test was added successfully"]
        );
    }
    let title = "\tACTIVE\tBUSY\tDOWN\tUNKNOWN\tTOTAL";
    let mut want = vec!["Batch: b Tests: 3 State: 176".to_owned()];
    let nodes = [title, "client\t1\t0\t0\t0\t1", "server\t1\t0\t0\t0\t1"].map(str::to_owned);
    want.extend(nodes.clone());
    for (n, name, conc) in [(1, "brw", 4), (2, "brw", 4), (3, "ping", 2)] {
        want.push(format!("\tTest {n}({name}) (loop: 6, concurrency: {conc})"));
        want.extend(nodes.clone());
    }
    assert_eq!(b.ok("list_batch b").await, want);
    assert_eq!(b.ok("run b").await, ["b is running now"]);
    let stat = b.ok("stat --delay 1 --count 1 clients").await;
    assert_eq!(stat.len(), 6, "{stat:?}");
    assert!(
        stat[0] == "[LNet Rates of clients]"
            && stat[3] == "[LNet Bandwidth of clients]"
            && stat[1].starts_with("[R] Avg: ")
    );
    assert_eq!(
        b.ok("show_error clients servers").await,
        [
            "clients:",
            "Total 0 error nodes in clients",
            "servers:",
            "Total 0 error nodes in servers"
        ]
    );
    assert_eq!(b.ok("stop b").await.last().unwrap(), "Batch is stopped");
    assert_eq!(b.ok("query b").await, ["b [0] is stopped"]);
    assert_eq!(
        b.ok("query b --test 3 --all").await,
        ["12345-1@lo [Active]: Idle"]
    );
    assert_eq!(
        b.ok("list_group").await,
        ["1) servers", "2) clients", "Total 2 groups"]
    );
    assert_eq!(
        b.ok("list_group clients").await,
        [title, "\t1\t0\t0\t0\t1\tclients"]
    );
    assert_eq!(
        b.ok("list_group --all clients").await,
        [
            "Group [ clients ]",
            "\t12345-1@lo: Active",
            "Total 1 nodes [ clients ]"
        ]
    );
    assert_eq!(
        b.ok("list_batch").await,
        ["1) batch", "2) b", "Total 2 batches"]
    );
    assert_eq!(
        b.ok("ping --group servers").await,
        ["\t12345-2@lo: Active [session: t1 id: 1@lo]"]
    );
    assert!(b.ok("show_session").await[0].ends_with("@1@lo, KEY: 422 FEATURES: 1 NODES: 2"));
    assert_eq!(b.ok("end_session").await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_are_shown_node_by_node() {
    let mut b = Bench::new().await;
    b.ok("add_group all [1-2]@lo").await;
    b.ok("add_test --loop 1 --from all --to all brw read check=simple size=8K")
        .await;
    b.st.inject_errors(1);
    b.ok("run").await;
    while b.ok("query").await != ["batch [0] is stopped"] {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let said = b.ok("show_error --session all").await;
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(
        said[1].ends_with("[Session 1 brw errors, 0 ping errors]")
            && said[2] == "Total 1 error nodes in all",
        "{said:?}"
    );
    b.server.shutdown().await;
    let (code, said) = b.say("run").await;
    assert!(
        code == 1 && said[0].starts_with("!Run batch RPC failed on 12345-2@lo: "),
        "{said:?}"
    );
    b.ok("add_batch later").await;
    let (code, said) = b
        .say("add_test --batch later --from all --to all ping")
        .await;
    assert!(code == 1 && said[0].contains("node 2@lo of group 'all' is Down and not active in this session: lst update_group all --clean down"), "{said:?}");
    assert_eq!(
        b.ok("list_group --down all").await,
        [
            "Group [ all ]",
            "\t12345-2@lo: Down",
            "Total 1 nodes [ all ]"
        ]
    );
}

#[tokio::test]
async fn a_wrong_line_gets_one_clear_sentence() {
    let mut b = Bench::new().await;
    b.ok("add_group g 2@lo").await;
    b.ok("add_batch b").await;
    for (line, says) in [
        ("add_group g 2@lo", "group 'g' already exists"),
        ("add_group h", "NIDS is missing"),
        (
            "add_group h 10.0.0.[9-1]@tcp",
            "syntax error in '10.0.0.[9-1]@tcp'",
        ),
        ("add_group h nowhere", "'nowhere' is no NID"),
        (
            "add_group aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 2@lo",
            "a name has 1 to 31 bytes",
        ),
        ("del_group h", "there is no group 'h'"),
        ("update_group g", "one of --refresh, --clean and --remove"),
        ("update_group g --clean sick", "'sick' is none of"),
        ("list_group h", "there is no group 'h'"),
        ("add_batch b", "batch 'b' already exists"),
        ("add_test --from g ping", "--to is missing"),
        ("add_test --from g --to h ping", "there is no group 'h'"),
        (
            "add_test --from g --to g --batch c ping",
            "there is no batch 'c'",
        ),
        ("add_test --from g --to g dance", "there is no test 'dance'"),
        (
            "add_test --from g --to g brw size=2M",
            "above the limit of 1 MiB",
        ),
        (
            "add_test --from g --to g --concurrency 2000 ping",
            "concurrency 2000 is out of range (1 to 1024)",
        ),
        (
            "add_test --from g --to g --loop 0 ping",
            "loop 0 is out of range",
        ),
        (
            "add_test --from g --to g --loop -5 ping",
            "loop -5 is out of range (1 to 2147483647, or -1",
        ),
        (
            "add_test --from g --to g brw write read",
            "a brw test reads or writes",
        ),
        (
            "add_test --from g --to g --distribute 2 ping",
            "distribution '2' is not CLIENTS:SERVERS",
        ),
        (
            "add_test --from g --to g --distribute 1:2 ping",
            "group 'g' has 1 nodes",
        ),
        ("run b", "batch 'b' has no test"),
        ("run c", "there is no batch 'c'"),
        ("run b --timeout 5", "lst stop"),
        ("query b --test 1", "batch 'b' has no test 1"),
        ("list_batch b --test 0", "test id starts from 1"),
        ("stat", "NAME|NIDS is missing"),
        ("stat h", "there is no group 'h'"),
        ("stat g --delay 0", "--delay has to be 1 or more"),
        ("stat g --rpc", "there is no option --rpc"),
        ("show_error x@tcp", "'x@tcp' is no NID"),
        ("ping", "whom?"),
    ] {
        let (code, said) = b.say(line).await;
        assert!(
            code == 1 && said.len() == 1 && said[0].starts_with("!lst: ") && said[0].contains(says),
            "{line}: {said:?}"
        );
    }
}
