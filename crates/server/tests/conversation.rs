//! What a kernel client said to kernel servers, said to ours: every reply is the recorded one, field by field, but for what is listed.
//!
//! The recordings (`data/*.talk`, Lustre 2.17.57 on both ends) are a mount, and a session of 83 operations with its mount and
//! umount; `crates/wire/tests/support/conversation.rs` says how they are made. Handles, cookies, sequences and objects are
//! mapped as replies reveal them. `data/differences-*.txt` list every other difference with its reason (those of the mount count
//! for the session too, which begins with one); one that is not listed fails, and so does one that does not occur any more.

#[path = "conversation/compare.rs"]
mod compare;
#[allow(dead_code, reason = "the extraction writes what is read here")]
#[path = "../../wire/tests/support/conversation.rs"]
mod conversation;
#[path = "conversation/player.rs"]
mod player;
#[path = "conversation/rig.rs"]
mod rig;
#[path = "conversation/table.rs"]
mod table;
#[path = "conversation/values.rs"]
mod values;

use player::Player;
use rig::Rig;
use table::Table;

async fn play(file: &[u8], differences: &str, at_least: usize) {
    let events = conversation::decode(file);
    let mut table = Table::read(differences);
    let rig = Rig::new().await;
    let mut player = Player::new(&rig, &mut table);
    player.play(&events).await;
    let (sent, compared, not_sent, operations) = (player.sent, player.compared, player.not_sent, player.operations.clone());
    let wrong = table.verdict(&operations);
    println!("{} operations: {sent} requests sent, {not_sent} left out, {compared} replies compared, {} listed differences", operations.len() - 1, table.listed());
    for w in &wrong {
        println!("{w}");
    }
    rig.stop().await;
    assert!(wrong.is_empty(), "{} differences that the table does not tell; see above", wrong.len());
    assert!(compared >= at_least, "{compared} replies compared");
}

#[tokio::test(start_paused = true)]
async fn a_mount_is_answered_as_recorded() {
    play(include_bytes!("data/mount.talk"), include_str!("data/differences-mount.txt"), 20).await;
}

#[tokio::test(start_paused = true)]
async fn a_session_is_answered_as_recorded() {
    play(include_bytes!("data/session.talk"), concat!(include_str!("data/differences-mount.txt"), include_str!("data/differences-session.txt")), 300).await;
}
