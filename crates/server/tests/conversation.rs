//! What a kernel client said to kernel servers, said to ours: every reply is the recorded one, field by field, but for what is listed.
//!
//! The recordings (`data/*.talk`, Lustre 2.17.57 on both ends) are a mount, a session of 83 operations with its mount and
//! umount, and a client that contends with another one and then recovers from the end of its servers;
//! `crates/wire/tests/support/conversation.rs` says how they are made. Handles, cookies, sequences, objects and transaction
//! numbers are mapped as replies reveal them. Our lock callbacks are answered as the recorded client answered the recorded
//! ones, and compared with them. `data/differences-*.txt` list every other difference with its reason; one that is not listed
//! fails, and so does one that does not occur any more.

#[path = "conversation/adapt.rs"]
mod adapt;
#[path = "conversation/batch.rs"]
mod batch;
#[path = "conversation/callbacks.rs"]
mod callbacks;
#[path = "conversation/commits.rs"]
mod commits;
#[path = "conversation/compare.rs"]
mod compare;
#[allow(dead_code, reason = "the extraction writes what is read here")]
#[path = "../../wire/tests/support/conversation.rs"]
mod conversation;
#[path = "conversation/lost.rs"]
mod lost;
#[path = "conversation/player.rs"]
mod player;
#[path = "conversation/rig.rs"]
mod rig;
#[path = "conversation/second.rs"]
mod second;
#[path = "conversation/table.rs"]
mod table;
#[path = "conversation/values.rs"]
mod values;

use player::Player;
use rig::Rig;
use table::Table;

/// A conversation to play.
struct Talk {
    file: &'static [u8],
    differences: &'static str,
    /// When it was recorded, seconds since 1970.
    at: i64,
    /// The fewest replies and callbacks that are compared.
    replies: usize,
    callbacks: usize,
}

async fn play(talk: Talk, second: bool) {
    let events = conversation::decode(talk.file);
    let mut table = Table::read(talk.differences);
    let mut rig = Rig::new(talk.at).await;
    if second {
        rig.give_sequences().await;
    }
    let mut player = Player::new(&mut rig, &mut table);
    if second {
        player = player.with_second().await;
    }
    player.play(&events).await;
    let (counts, operations) = (
        std::mem::take(&mut player.counts),
        player.operations.clone(),
    );
    let wrong = table.verdict(&operations);
    println!(
        "{} operations: {} requests sent, {} not; {} replies and {} callbacks compared, {} fields; {} listed differences",
        operations.len() - 1,
        counts.sent,
        counts.not_sent,
        counts.compared,
        counts.callbacks,
        counts.fields,
        table.listed()
    );
    for w in &wrong {
        println!("{w}");
    }
    rig.stop().await;
    assert!(
        wrong.is_empty(),
        "{} differences that the table does not tell; see above",
        wrong.len()
    );
    assert!(
        counts.compared >= talk.replies && counts.callbacks >= talk.callbacks,
        "too little was compared"
    );
}

#[tokio::test(start_paused = true)]
async fn a_mount_is_answered_as_recorded() {
    let talk = Talk {
        file: include_bytes!("data/mount.talk"),
        differences: concat!(
            include_str!("data/differences-connect.txt"),
            include_str!("data/differences-mount.txt")
        ),
        at: 1_795_217_951,
        replies: 20,
        callbacks: 0,
    };
    play(talk, false).await;
}

#[tokio::test(start_paused = true)]
async fn a_session_is_answered_as_recorded() {
    let differences = concat!(
        include_str!("data/differences-connect.txt"),
        include_str!("data/differences-mount.txt"),
        include_str!("data/differences-common.txt"),
        include_str!("data/differences-session.txt")
    );
    play(
        Talk {
            file: include_bytes!("data/session.talk"),
            differences,
            at: 1_795_217_951,
            replies: 1000,
            callbacks: 8,
        },
        false,
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn two_clients_and_a_restart_are_answered_as_recorded() {
    let differences = concat!(
        include_str!("data/differences-connect.txt"),
        include_str!("data/differences-common.txt"),
        include_str!("data/differences-contend.txt")
    );
    let talk = Talk {
        file: include_bytes!("data/contend.talk"),
        differences,
        at: 1_795_218_613,
        replies: 150,
        callbacks: 15,
    };
    play(talk, true).await;
}
