use super::core::NODE_BYTES;
use super::known::ATTR_BITS;
use super::*;
use crate::lov::FileLayout;
use coral_wire::layout::LmvMd;
use coral_wire::ldlm::Ibits;

const DIR: Fid = Fid::new(0x400, 1);
const CHILD: Fid = Fid::new(0x400, 2);
const FULL: u64 = ATTR_BITS | Ibits::LAYOUT.bits();

fn md(fid: Fid, mode: u32, version: u64) -> MdInode {
    let attr = Attr {
        mode,
        ..Attr::empty(fid)
    };
    MdInode {
        attr,
        layout: Arc::new(FileLayout::none()),
        acl: Bytes::new(),
        striped: None,
        shard: false,
        version,
        rough_size: None,
        anyone: false,
    }
}

fn dir(version: u64) -> MdInode {
    md(DIR, libc::S_IFDIR | 0o755, version)
}

fn file(version: u64) -> MdInode {
    md(CHILD, libc::S_IFREG | 0o644, version)
}

fn cache() -> Arc<Cache> {
    Arc::new(Cache::new(true, 1))
}

fn learn(c: &Cache, m: &MdInode, cookie: u64) {
    let mark = c.begin_read(m.attr.fid);
    c.learn(mark, m, Some((cookie, FULL)), || true);
}

#[test]
fn attributes_live_as_long_as_their_lock() {
    let c = cache();
    assert!(c.known(CHILD).is_none());
    learn(&c, &file(3), 10);
    assert_eq!(c.known(CHILD).unwrap().md.version, 3);
    assert_eq!(c.lock_lost(CHILD, 10, FULL).inodes, [CHILD]);
    assert!(c.known(CHILD).is_none());
}

#[test]
fn a_lock_called_back_before_the_reply_was_taken_in_covers_nothing() {
    let c = cache();
    c.learn(c.begin_read(CHILD), &file(3), Some((10, FULL)), || false);
    assert!(c.known(CHILD).is_none());
}

#[test]
fn a_file_needs_its_layout_covered() {
    let c = cache();
    c.learn(c.begin_read(CHILD), &file(3), Some((10, ATTR_BITS)), || {
        true
    });
    assert!(c.known(CHILD).is_none());
    c.learn(c.begin_read(DIR), &dir(3), Some((11, ATTR_BITS)), || true);
    assert!(c.known(DIR).is_some());
}

#[test]
fn two_locks_on_one_object() {
    let c = cache();
    learn(&c, &file(3), 10);
    learn(&c, &file(3), 11);
    assert_eq!(c.lock_lost(CHILD, 10, FULL), Forget::default());
    assert!(c.known(CHILD).is_some());
    assert_eq!(c.lock_lost(CHILD, 11, FULL).inodes, [CHILD]);
    assert!(c.known(CHILD).is_none());
}

fn any(dir: Fid) -> Entries {
    [(dir, None)].into_iter().collect()
}

fn one(dir: Fid, name: &'static [u8]) -> Entries {
    [(dir, Some(Bytes::from_static(name)))]
        .into_iter()
        .collect()
}

#[test]
fn a_name_relies_on_its_object_s_lookup_lock() {
    let c = cache();
    let mark = c.begin_read(DIR);
    learn(&c, &file(3), 10);
    c.learn_name(mark, DIR, b"a", CHILD, 10);
    assert!(matches!(c.lookup(DIR, b"a"), Lookup::Hit(_)));
    assert!(matches!(c.lookup(DIR, b"b"), Lookup::Unknown));
    assert_eq!(
        c.lock_lost(CHILD, 10, FULL).entries,
        [(DIR, Bytes::from_static(b"a"))]
    );
    assert!(matches!(c.lookup(DIR, b"a"), Lookup::Unknown));
}

#[test]
fn a_lookup_beside_an_own_change_of_that_name_adds_none() {
    for (what, adds) in [
        (any(DIR), false),
        (one(DIR, b"a"), false),
        (one(DIR, b"b"), true),
    ] {
        let c = cache();
        let mark = c.begin_read(DIR);
        drop(c.begin_change(what.clone()));
        learn(&c, &file(3), 10);
        c.learn_name(mark, DIR, b"a", CHILD, 10);
        assert_eq!(matches!(c.lookup(DIR, b"a"), Lookup::Hit(_)), adds);

        let c = cache();
        let change = c.begin_change(what.clone());
        let mark = c.begin_read(DIR);
        learn(&c, &file(3), 10);
        c.learn_name(mark, DIR, b"a", CHILD, 10);
        assert_eq!(matches!(c.lookup(DIR, b"a"), Lookup::Hit(_)), adds);
        drop(change);
        c.learn_name(mark, DIR, b"a", CHILD, 10);
        assert_eq!(matches!(c.lookup(DIR, b"a"), Lookup::Hit(_)), adds);
    }
}

/// What is asked for while other objects change is known afterwards, and what is asked for while it goes away itself is not.
#[test]
fn attributes_asked_for_beside_own_changes_of_others_are_learned() {
    for known in [false, true] {
        let c = cache();
        let other = |n: u32| Fid::new(0x500, n);
        learn(&c, &md(other(0), libc::S_IFREG | 0o644, 1), 7);
        if known {
            learn(&c, &file(2), 9);
        }
        let mark = c.begin_read(CHILD);
        c.gone(other(0));
        drop(c.begin_change(one(DIR, b"b")));
        c.learn(mark, &file(3), Some((10, FULL)), || true);
        assert!(c.known(CHILD).is_some());

        let mark = c.begin_read(CHILD);
        c.gone(CHILD);
        c.learn(mark, &file(3), Some((11, FULL)), || true);
        assert!(c.known(CHILD).is_none());

        // more go than are remembered
        let (c, late) = (cache(), Fid::new(0x600, 1));
        let mark = c.begin_read(late);
        (0..200).for_each(|n| c.gone(other(n)));
        c.learn(
            mark,
            &md(late, libc::S_IFREG | 0o644, 1),
            Some((12, FULL)),
            || true,
        );
        assert!(c.known(late).is_none());
        learn(&c, &md(late, libc::S_IFREG | 0o644, 1), 13);
        assert!(c.known(late).is_some());
    }
}

/// An own change is forgotten with what it changed, for want of room: a reply from before it is not taken for what is.
#[test]
fn what_was_changed_and_pushed_out_is_not_learned_from_an_old_reply() {
    let changes: [fn(&Arc<Cache>); 2] = [
        |c| c.forget_attrs(CHILD),
        |c| c.changed(&file(9).attr, 9, true),
    ];
    for change in changes {
        let c = cache();
        let mark = c.begin_read(CHILD);
        change(&c);
        push_out(&c, CHILD);
        c.learn(mark, &file(3), Some((11, FULL)), || true);
        assert!(c.known(CHILD).is_none());
        learn(&c, &file(9), 12);
        assert!(c.known(CHILD).is_some());
    }
}

/// Others are learned until there is no room for `fid`.
fn push_out(c: &Arc<Cache>, fid: Fid) {
    for n in 0.. {
        if !c.core.lock().nodes.contains_key(&fid) {
            return;
        }
        c.unused(fid);
        let other = md(Fid::new(0x500, n), libc::S_IFREG | 0o644, 1);
        learn(c, &other, 20 + u64::from(n));
    }
}

/// The directory is forgotten for want of room while it is listed, its lock goes meanwhile, and there is another one at the end.
#[test]
fn a_listing_under_two_locks_is_not_complete() {
    let c = cache();
    learn(&c, &dir(5), 1);
    let mark = c.begin_read(DIR);
    push_out(&c, DIR);
    learn(&c, &dir(6), 2);
    let listed = vec![(Bytes::from_static(b"a"), CHILD)];
    assert!(!c.learn_listing(mark, DIR, listed.clone()));
    assert!(c.learn_listing(c.begin_read(DIR), DIR, listed));
}

/// It was told of a name in a way that leaves open which.
#[test]
fn a_lookup_from_before_a_doubt_adds_no_name() {
    let c = cache();
    let mark = c.begin_read(DIR);
    learn(&c, &file(3), 10);
    c.doubt(DIR);
    c.learn_name(mark, DIR, b"a", CHILD, 10);
    assert!(matches!(c.lookup(DIR, b"a"), Lookup::Unknown));
    c.learn_name(c.begin_read(DIR), DIR, b"a", CHILD, 10);
    assert!(matches!(c.lookup(DIR, b"a"), Lookup::Hit(_)));
}

#[test]
fn a_listing_read_under_the_lock_is_complete() {
    let c = cache();
    learn(&c, &dir(5), 1);
    assert!(c.learn_listing(
        c.begin_read(DIR),
        DIR,
        vec![(Bytes::from_static(b"a"), CHILD)]
    ));
    assert!(matches!(c.lookup(DIR, b"a"), Lookup::Name(f) if f == CHILD));
    assert!(matches!(c.lookup(DIR, b"b"), Lookup::Absent));
    // an own create and an own unlink follow it
    c.changed_name(&dir(6).attr, 6, b"b", Some(Fid::new(0x400, 9)));
    c.changed_name(&dir(7).attr, 7, b"a", None);
    assert!(matches!(c.lookup(DIR, b"a"), Lookup::Absent));
    assert!(matches!(c.lookup(DIR, b"b"), Lookup::Name(_)));
    assert_eq!(c.known(DIR).unwrap().md.version, 7);
    c.lock_lost(DIR, 1, FULL);
    assert!(matches!(c.lookup(DIR, b"zzz"), Lookup::Unknown));
}

#[test]
fn a_listing_without_the_lock_or_across_its_loss_is_not() {
    let c = cache();
    let mark = c.begin_read(DIR);
    learn(&c, &dir(5), 1);
    assert!(
        !c.learn_listing(mark, DIR, vec![]),
        "the lock came after the read began"
    );
    let mark = c.begin_read(DIR);
    c.lock_lost(DIR, 1, FULL);
    learn(&c, &dir(6), 2);
    assert!(!c.learn_listing(mark, DIR, vec![]), "another lock");
}

#[test]
fn a_directory_of_our_own_making_is_complete_with_the_lock_alone() {
    let c = cache();
    c.made_dir(DIR, 1);
    assert_eq!(c.dir_state(DIR), DirState::Tracked);
    c.changed_name(&dir(2).attr, 2, b"a", Some(CHILD));
    learn(&c, &dir(2), 1);
    assert_eq!(c.dir_state(DIR), DirState::Complete);
    assert!(matches!(c.lookup(DIR, b"a"), Lookup::Name(_)));
    assert!(matches!(c.lookup(DIR, b"b"), Lookup::Absent));
}

#[test]
fn a_change_of_somebody_else_ends_tracking() {
    let c = cache();
    c.made_dir(DIR, 1);
    c.changed_name(&dir(3).attr, 3, b"a", Some(CHILD));
    learn(&c, &dir(3), 1);
    assert!(
        matches!(c.dir_state(DIR), DirState::Locked(_)),
        "version 2 was not ours"
    );

    let c = cache();
    c.made_dir(DIR, 1);
    learn(&c, &dir(2), 1);
    assert!(matches!(c.dir_state(DIR), DirState::Locked(_)));
}

#[test]
fn a_version_that_is_not_our_doing_ends_tracking() {
    let c = cache();
    c.made_dir(DIR, 1);
    c.changed(&dir(2).attr, 2, false);
    learn(&c, &dir(2), 1);
    assert!(matches!(c.dir_state(DIR), DirState::Locked(_)));
}

#[test]
fn a_listing_comes_back_with_the_lock_if_the_version_is_the_same() {
    let c = cache();
    learn(&c, &dir(5), 1);
    assert!(c.learn_listing(
        c.begin_read(DIR),
        DIR,
        vec![(Bytes::from_static(b"a"), CHILD)]
    ));
    c.lock_lost(DIR, 1, FULL);
    learn(&c, &dir(5), 2);
    assert_eq!(c.dir_state(DIR), DirState::Complete);
    c.lock_lost(DIR, 2, FULL);
    learn(&c, &dir(6), 3);
    assert!(matches!(c.dir_state(DIR), DirState::Locked(_)));
    assert!(matches!(c.lookup(DIR, b"a"), Lookup::Unknown));
}

#[test]
fn replies_out_of_order_leave_the_newest() {
    let c = cache();
    learn(&c, &dir(5), 1);
    assert!(c.learn_listing(c.begin_read(DIR), DIR, vec![]));
    c.changed_name(&dir(7).attr, 7, b"a", None); // unlink, after
    c.changed_name(&dir(6).attr, 6, b"a", Some(CHILD)); // create, before: its reply is late
    assert!(matches!(c.lookup(DIR, b"a"), Lookup::Absent));
    assert_eq!(c.known(DIR).unwrap().md.version, 7);
}

#[test]
fn a_read_that_began_before_an_own_change_is_not_taken_in() {
    let c = cache();
    let mark = c.begin_read(CHILD);
    c.forget_attrs(CHILD);
    c.learn(mark, &file(3), Some((10, FULL)), || true);
    assert!(c.known(CHILD).is_none());
    c.changed(&file(9).attr, 9, true);
    c.learn(c.begin_read(CHILD), &file(8), None, || true);
    assert!(
        c.known(CHILD).is_none(),
        "older than what an own change told"
    );
    c.learn(c.begin_read(CHILD), &file(9), None, || true);
    assert_eq!(c.known(CHILD).unwrap().md.version, 9);
}

#[test]
fn sizes_go_with_their_extent_lock_or_layout() {
    let c = cache();
    let obj = (2, ResId([5, 0, 0, 0]));
    let size = ObjectAttr {
        size: 7,
        ..Default::default()
    };
    c.learn_objects(CHILD, 0, &[obj], size, || true);
    assert!(c.known(CHILD).is_none(), "no attributes, no size");
    learn(&c, &file(3), 10);
    c.learn_objects(CHILD, 9, &[obj], size, || true);
    assert!(c.known(CHILD).unwrap().objects.is_none(), "another layout");
    c.learn_objects(CHILD, 0, &[obj], size, || false);
    assert!(
        c.known(CHILD).unwrap().objects.is_none(),
        "called back already"
    );
    c.learn_objects(CHILD, 0, &[obj], size, || true);
    assert_eq!(c.known(CHILD).unwrap().objects.unwrap().size, 7);
    assert_eq!(c.extent_lost(obj.0, obj.1).inodes, [CHILD]);
    assert!(c.known(CHILD).unwrap().objects.is_none());
    assert_eq!(c.extent_lost(obj.0, obj.1), Forget::default());
    c.learn_objects(CHILD, 0, &[obj], size, || true);
    c.lock_lost(CHILD, 10, FULL);
    learn(&c, &file(4), 11);
    assert!(
        c.known(CHILD).unwrap().objects.is_none(),
        "the layout lock was lost in between"
    );
}

#[test]
fn memory_is_bounded() {
    let c = cache();
    for i in 0..20_000u32 {
        let fid = Fid::new(0x500, i);
        let m = md(fid, libc::S_IFDIR, 1);
        c.learn(c.begin_read(fid), &m, Some((i as u64, FULL)), || true);
    }
    let inner = c.core.lock();
    assert!(inner.bytes() <= 1 << 20 && inner.nodes.len() <= (1 << 20) / NODE_BYTES);
    assert!(inner.nodes.len() > 100);
}

#[test]
fn switched_off_it_knows_nothing() {
    let c = Arc::new(Cache::new(false, 1));
    c.learn(c.begin_read(CHILD), &file(3), Some((10, FULL)), || true);
    c.made_dir(DIR, 1);
    drop(c.begin_change(any(DIR)));
    assert!(c.known(CHILD).is_none());
    assert!(matches!(c.lookup(DIR, b"a"), Lookup::Unknown));
}

/// The name's MDT gives a lock for the name, the object's MDT one for its attributes.
#[test]
fn a_name_on_another_mdt_relies_on_a_lock_of_that() {
    let c = cache();
    learn(&c, &dir(1), 11);
    let mark = c.begin_read(DIR);
    c.learn(c.begin_read(CHILD), &file(3), Some((10, FULL)), || true);
    c.learn_name_elsewhere(mark, (DIR, b"f"), CHILD, 20, || false);
    assert!(
        !c.is_named_to_caller(DIR, DIR, b"f", CHILD),
        "it is called back already"
    );
    c.learn_name_elsewhere(mark, (DIR, b"f"), CHILD, 20, || true);
    assert!(matches!(c.lookup(DIR, b"f"), Lookup::Hit(_)));
    // the lock of the name goes, and nothing else with it
    let told = c.lock_lost(CHILD, 20, Ibits::LOOKUP.bits());
    assert_eq!(
        (told.inodes, told.entries),
        (vec![], vec![(DIR, Bytes::from_static(b"f"))])
    );
    assert!(c.known(CHILD).is_some());
    assert!(matches!(c.lookup(DIR, b"f"), Lookup::Unknown));
    // the lock of the attributes goes, and the name stays
    c.learn_name_elsewhere(c.begin_read(DIR), (DIR, b"f"), CHILD, 21, || true);
    c.lock_lost(CHILD, 10, FULL);
    assert!(c.known(CHILD).is_none());
    assert!(matches!(c.lookup(DIR, b"f"), Lookup::Name(CHILD)));
    // an own change meanwhile
    let (mark, change) = (c.begin_read(DIR), c.begin_change(any(DIR)));
    drop(change);
    c.learn_name_elsewhere(mark, (DIR, b"g"), CHILD, 22, || true);
    assert!(!c.is_named_to_caller(DIR, DIR, b"g", CHILD));
    assert_eq!(c.clear().entries, [(DIR, Bytes::from_static(b"f"))]);
}

/// A directory in shards: the kernel knows the name as one of the whole.
#[test]
fn a_name_in_a_shard_is_told_as_one_of_the_directory() {
    let (c, whole) = (cache(), Fid::new(0x2_0000_0400, 99));
    let both = [
        (DIR, Bytes::from_static(b"f")),
        (whole, Bytes::from_static(b"f")),
    ];
    learn(&c, &dir(1), 11);
    learn(&c, &file(3), 10);
    assert!(!c.is_named_to_caller(DIR, whole, b"f", CHILD));
    c.learn_name(c.begin_read(DIR), DIR, b"f", CHILD, 10);
    for _ in 0..2 {
        assert!(c.is_named_to_caller(DIR, whole, b"f", CHILD));
    }
    assert_eq!(c.lock_lost(CHILD, 10, FULL).entries, both);
    // the child on another MDT than the shard
    c.learn(c.begin_read(CHILD), &file(4), Some((12, FULL)), || true);
    c.learn_name_elsewhere(c.begin_read(DIR), (DIR, b"f"), CHILD, 20, || true);
    for _ in 0..2 {
        assert!(c.is_named_to_caller(DIR, whole, b"f", CHILD));
    }
    assert_eq!(c.lock_lost(CHILD, 20, Ibits::LOOKUP.bits()).entries, both);
    // a name that an own change took away is not kept for that
    c.learn_name(c.begin_read(DIR), DIR, b"f", CHILD, 12);
    for (version, name) in (2u64..).zip([b"g", b"h", b"i"]) {
        let change = c.begin_change(any(DIR));
        c.changed_name(&Attr::empty(DIR), version, name, Some(CHILD));
        drop(change);
        assert!(c.is_named_to_caller(DIR, whole, name, CHILD));
        let change = c.begin_change(any(DIR));
        c.changed_name(&Attr::empty(DIR), version + 10, name, None);
        drop(change);
    }
    assert_eq!(c.lock_lost(CHILD, 12, FULL).entries, both);
}

/// The attributes of a directory in shards are those of the shards: they are remembered while locks on all of them are held.
#[test]
fn attributes_of_a_striped_directory_live_as_long_as_the_locks_on_all_shards() {
    let (c, shards) = (cache(), [Fid::new(0x400, 7), Fid::new(0x2_0000_0400, 8)]);
    let whole = MdInode {
        striped: Some(Arc::new(LmvMd {
            stripe_fids: shards.to_vec(),
            ..LmvMd::default()
        })),
        ..dir(1)
    };
    let shard = |n: usize, size: u64| {
        let mut shard = md(shards[n], libc::S_IFDIR | 0o755, 1);
        (shard.attr.size, shard.attr.nlink, shard.shard) = (size, 3, true);
        shard
    };
    learn(&c, &whole, 10);
    learn(&c, &shard(0, 100), 11);
    assert_eq!((c.striped(DIR), c.directory_of(shards[0])), (None, None));
    for lost in [1, 0] {
        learn(&c, &shard(1, 200), 12);
        learn(&c, &shard(0, 100), 11);
        let merged = c.striped(DIR).expect("all are covered");
        assert_eq!((merged.size, merged.nlink), (300, 4));
        assert_eq!(c.directory_of(shards[lost]), Some(DIR));
        let told = c.lock_lost(shards[lost], 11 + lost as u64, FULL);
        assert_eq!(told.inodes, [shards[lost], DIR]);
        assert_eq!(c.striped(DIR), None);
        // it is told once, until it is asked for again
        let again = c.lock_lost(shards[lost], 30, FULL);
        assert_eq!(again.inodes, [shards[lost]]);
    }
    learn(&c, &shard(0, 100), 13);
    assert!(c.striped(DIR).is_some());
    // a shard went from here for want of room, and above us it is remembered still
    for _ in 0..2 {
        c.core.lock().shrink(0);
    }
    assert_eq!(c.lock_lost(shards[0], 13, FULL).inodes, [shards[0], DIR]);
    assert_eq!(c.lock_lost(DIR, 10, FULL).inodes, [DIR]);
    learn(&c, &whole, 14);
    learn(&c, &shard(0, 100), 15);
    learn(&c, &shard(1, 200), 16);
    assert!(c.striped(DIR).is_some());
    for _ in 0..2 {
        c.core.lock().shrink(0);
    }
    assert!(
        c.clear().inodes.contains(&DIR),
        "told though it went from here"
    );
}

#[test]
fn what_went_for_want_of_room_is_still_told_when_its_lock_goes() {
    let c = cache();
    learn(&c, &file(3), 10);
    learn(&c, &dir(1), 11);
    c.learn_name(c.begin_read(DIR), DIR, b"f", CHILD, 10);
    for _ in 0..2 {
        c.core.lock().shrink(0);
    }
    assert!(c.known(CHILD).is_none());
    let told = c.lock_lost(CHILD, 10, FULL);
    assert_eq!((told.inodes, told.entries.len()), (vec![CHILD], 1));
    // also when something else about it was learned meanwhile
    c.changed_name(&Attr::empty(DIR), 2, b"g", None);
    assert_eq!(c.lock_lost(DIR, 11, FULL).inodes, [DIR]);
    let layout = c.lock_lost(CHILD, 12, Ibits::LAYOUT.bits());
    assert_eq!((layout.inodes, layout.entries.len()), (vec![CHILD], 0));
    assert_eq!(c.lock_lost(DIR, 12, Ibits::OPEN.bits()), Forget::default());
}

/// The node goes for want of room and comes again, without sizes: whoever was told them before hears of their lock's loss.
#[test]
fn sizes_that_went_for_want_of_room_are_still_told_of() {
    let c = cache();
    let obj = (2, ResId([5, 0, 0, 0]));
    learn(&c, &file(3), 10);
    c.learn_objects(CHILD, 0, &[obj], ObjectAttr::default(), || true);
    for _ in 0..2 {
        c.core.lock().shrink(0);
    }
    learn(&c, &file(3), 11);
    assert!(c.known(CHILD).unwrap().objects.is_none());
    assert_eq!(c.extent_lost(obj.0, obj.1).inodes, [CHILD]);
}

#[test]
fn the_loss_of_a_layout_alone_is_told() {
    let c = cache();
    c.learn(c.begin_read(CHILD), &file(3), Some((10, ATTR_BITS)), || {
        true
    });
    learn(&c, &file(3), 11);
    assert!(c.known(CHILD).is_some());
    assert_eq!(c.lock_lost(CHILD, 11, FULL).inodes, [CHILD]);
}

/// Two lookups of one client: the reply of before a rename comes after the lock that covers what came after it.
#[test]
fn a_name_relies_on_the_lock_it_came_with() {
    let c = cache();
    let mark = c.begin_read(DIR);
    learn(&c, &file(3), 11);
    c.learn_name(mark, DIR, b"a", CHILD, 10);
    assert!(!c.is_named_to_caller(DIR, DIR, b"a", CHILD));
    c.learn_name(mark, DIR, b"a", CHILD, 11);
    assert!(
        c.is_named_to_caller(DIR, DIR, b"a", CHILD) && !c.is_named_to_caller(DIR, DIR, b"b", CHILD)
    );
}

/// A name of a listing is asked about, and the directory's lock goes meanwhile.
#[test]
fn a_listed_name_is_confirmed_while_the_listing_stands() {
    let c = cache();
    let list = |version, cookie| {
        learn(&c, &dir(version), cookie);
        let names = vec![(Bytes::from_static(b"a"), CHILD)];
        assert!(c.learn_listing(c.begin_read(DIR), DIR, names));
    };
    list(5, 1);
    let mark = c.begin_read(DIR);
    learn(&c, &file(3), 10);
    assert!(c.confirm_name(mark, DIR, b"a", CHILD) && c.is_named_to_caller(DIR, DIR, b"a", CHILD));
    c.lock_lost(CHILD, 10, FULL);
    let mark = c.begin_read(DIR);
    c.lock_lost(DIR, 1, FULL);
    learn(&c, &dir(6), 2);
    learn(&c, &file(4), 11);
    assert!(
        !c.confirm_name(mark, DIR, b"a", CHILD) && !c.is_named_to_caller(DIR, DIR, b"a", CHILD)
    );
}

/// A server that counts no versions: the slower of two replies is the older one.
#[test]
fn without_versions_a_reply_whose_lock_has_gone_is_not_taken_in() {
    let c = cache();
    let (slow, mut old) = (c.begin_read(CHILD), file(0));
    old.attr.mode = libc::S_IFREG | 0o600;
    learn(&c, &file(0), 11);
    c.learn(slow, &old, Some((10, FULL)), || false);
    assert_eq!(c.known(CHILD).unwrap().md.attr.mode & 0o777, 0o644);
}

#[test]
fn an_object_that_is_gone_leaves_nothing() {
    let c = cache();
    let before = c.core.lock().bytes();
    learn(&c, &file(3), 10);
    c.gone(CHILD);
    assert!(c.known(CHILD).is_none());
    assert_eq!(c.core.lock().bytes(), before);
}

/// Another mount changes the directory between two listings here.
#[test]
fn names_that_are_not_remembered_any_more_are_not_counted() {
    let c = cache();
    let mut after_one = 0;
    for round in 1..=50 {
        let began = c.begin_read(DIR);
        c.learn(began, &dir(round), Some((round, FULL)), || true);
        let names = (0..100).map(|i| (Bytes::from(format!("name{i}")), CHILD));
        assert!(c.learn_listing(c.begin_read(DIR), DIR, names.collect()));
        after_one = if round == 1 {
            c.spent().inode_bytes
        } else {
            after_one
        };
        assert_eq!(c.spent().inode_bytes, after_one);
        c.lock_lost(DIR, round, FULL);
    }
    c.doubt(DIR);
    assert_eq!(c.spent().inode_bytes, NODE_BYTES);
}

/// A directory with `names` names that is known as a whole.
fn listed(c: &Cache, dir: Fid, names: u32) {
    learn(c, &md(dir, libc::S_IFDIR | 0o755, 1), u64::from(dir.oid));
    let names = (0..names).map(|i| (Bytes::from(format!("name{i}")), CHILD));
    assert!(c.learn_listing(c.begin_read(dir), dir, names.collect()));
}

#[test]
fn names_of_directories_that_go_are_not_counted() {
    let c = cache();
    listed(&c, DIR, 100);
    c.gone(DIR);
    assert_eq!(c.spent().inode_bytes, 0);
    // far more than there is room for
    for i in 0..1000 {
        listed(&c, Fid::new(0x500, i), 100);
    }
    let spent = c.spent();
    assert!(
        spent.inode_bytes <= 1 << 20 && spent.inodes > 10,
        "{spent:?}"
    );
    assert!(spent.inode_bytes / spent.inodes > 100 * 100, "{spent:?}");
    c.clear();
    assert_eq!(c.spent().inode_bytes, 0);
}

/// A client that fills a directory, of which it knows all names.
#[test]
fn a_directory_that_is_filled_pushes_nothing_else_out() {
    let c = cache();
    listed(&c, DIR, 10);
    let other = Fid::new(0x500, 1);
    learn(&c, &md(other, libc::S_IFREG | 0o644, 1), 7);
    for i in 0..20_000 {
        assert!(c.known(other).is_some(), "after {i}");
        let change = c.begin_change(any(DIR));
        let attr = md(DIR, libc::S_IFDIR | 0o755, 0).attr;
        c.changed_name(&attr, 2 + i, format!("new{i}").as_bytes(), Some(CHILD));
        drop(change);
        assert!(c.spent().inode_bytes <= 1 << 20, "after {i}");
    }
}

#[test]
fn data_of_a_file_that_is_read_often_stays() {
    let c = cache();
    for round in 0..200 {
        learn(&c, &file(3), 10);
        let (attr, data) = (
            ObjectAttr::default(),
            Payload::from(Bytes::from_static(b"data")),
        );
        let generation = c.known(CHILD).unwrap().md.layout.generation;
        let object = (0, ResId::default());
        c.learn_data(CHILD, generation, object, (attr, data), || true);
        assert!(c.data(CHILD, 0, 10).is_some(), "round {round}");
    }
}

#[test]
fn data_that_comes_after_a_lock_went_is_not_taken() {
    let c = cache();
    let (object, data) = (
        (0, ResId::default()),
        Payload::from(Bytes::from_static(b"data")),
    );
    let attr = ObjectAttr {
        size: 4,
        ..ObjectAttr::default()
    };
    let learn_size = || {
        learn(&c, &file(3), 10);
        let generation = c.known(CHILD).unwrap().md.layout.generation;
        c.learn_objects(CHILD, generation, &[object], attr, || true);
    };
    assert_eq!(c.wants_data(CHILD), None);
    learn_size();
    let (asked, size) = c.wants_data(CHILD).unwrap();
    assert_eq!(size, 4);
    c.extent_lost(object.0, object.1);
    c.learn_data_since(CHILD, asked, data.clone());
    assert!(!c.has_data(CHILD) && c.wants_data(CHILD).is_none());
    learn_size();
    c.learn_data_since(CHILD, asked, data.clone());
    assert!(!c.has_data(CHILD), "asked for under the lock before");
    let (asked, size) = c.wants_data(CHILD).unwrap();
    assert_eq!(size, 4);
    c.learn_data_since(CHILD, asked, data.slice(0..3));
    assert!(!c.has_data(CHILD), "not all of it");
    c.learn_data_since(CHILD, asked, data.clone());
    assert!(c.has_data(CHILD) && c.wants_data(CHILD).is_none());
    assert_eq!(c.data(CHILD, 0, 10), Some(data));
    c.extent_lost(object.0, object.1);
    assert!(!c.has_data(CHILD));
}
