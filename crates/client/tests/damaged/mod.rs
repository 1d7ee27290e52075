//! A small file system on three MDTs that is damaged in its tables, and what there is to see of it from a client.

pub mod damages;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use coral_client::Llite;
use coral_node::{Cluster, Disks};
use coral_osd::{Batch, DiskModel, Kv, OsdSim, Table, TargetKind};
use coral_server::mdt::record::Inode;
use coral_server::mdt::table;
use coral_server::{mgs, older_copy};
use coral_wire::Fid;
use coral_wire::layout::LmvMd;

use crate::common::{FSNAME, User};
use crate::several::{mkdir_on, mkdir_over};

/// What a client sees of one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub fid: Fid,
    /// Type bits.
    pub kind: u32,
    /// Content of a file, target of a symbolic link.
    pub data: Vec<u8>,
}

pub type Tree = BTreeMap<String, Seen>;

/// The file system before it is damaged, and its disks.
pub struct World {
    pub c: Cluster,
    pub whole: Disks,
    pub tree: Tree,
}

fn copy(disks: &Disks) -> Disks {
    let one = |disk: &OsdSim| OsdSim::new(disk.copy(), DiskModel::INSTANT, 1);
    Disks {
        mgs: one(&disks.mgs),
        mdt: one(&disks.mdt),
        more_mdts: disks.more_mdts.iter().map(one).collect(),
        osts: disks.osts.iter().map(one).collect(),
    }
}

async fn fill(u: &User) {
    for i in 0..6 {
        u.put(&format!("f{i}"), format!("file {i}").as_bytes())
            .await
            .unwrap();
    }
    u.mkdir("d").await.unwrap();
    u.mkdir("d/e").await.unwrap();
    u.put("d/a", &[7; 5000]).await.unwrap();
    u.put("d/e/f", b"deep").await.unwrap();
    u.symlink("d/a", "d/l").await.unwrap();
    u.put("d/many", b"one of many").await.unwrap();
    for i in 0..12 {
        u.link("d/many", &format!("d/many{i}")).await.unwrap();
    }
    mkdir_on(u, "one", 1).await.unwrap();
    u.put("one/x", b"on one").await.unwrap();
    mkdir_on(u, "one/two", 2).await.unwrap();
    u.put("one/two/y", b"on two").await.unwrap();
    // a file of MDT0000 with a name on MDT0001, beside its own
    u.put("far", b"far away").await.unwrap();
    u.rename("far", "one/far", 0).await.unwrap();
    mkdir_over(u, "s", 3, 0).await.unwrap();
    for i in 0..24 {
        u.put(&format!("s/g{i}"), format!("shard {i}").as_bytes())
            .await
            .unwrap();
    }
    u.mkdir("s/sub").await.unwrap();
    u.put("s/sub/z", b"below").await.unwrap();
    u.dom_dir("dom", 1).await;
    u.put("dom/small", &[3; 900]).await.unwrap();
    let a = u.fid("d/a").await.unwrap();
    let big = Bytes::from(vec![9u8; 3000]);
    u.fs.setxattr(&u.cred, a, b"user.big", big, 0)
        .await
        .unwrap();
}

impl World {
    pub async fn new() -> World {
        let b = Cluster::builder().fsname(FSNAME).mdts(3).osts(2);
        let mut c = b.start().await.expect("a cluster");
        let fs = c.remote_client().await.expect("a mount");
        let u = User::root(fs.llite());
        fill(&u).await;
        let tree = walk(&u).await;
        let w = crate::several::quiet_cluster(&c);
        w.await;
        fs.umount().await;
        c.stop().await;
        let whole = copy(&c.disks);
        c.disks = copy(&whole);
        World { c, whole, tree }
    }

    /// The disks as they were, to be damaged.
    pub fn fresh(&self) -> Hurt<'_> {
        Hurt {
            world: self,
            disks: copy(&self.whole),
        }
    }

    pub fn fid(&self, path: &str) -> Fid {
        self.tree[path].fid
    }

    /// What is on the disks now.
    pub fn copied(&self) -> Found {
        Found(copy(&self.c.disks))
    }

    /// What is on the disks now, but for one MDT: that is as it was in the beginning.
    pub fn with_older(&self, mdt: u32) -> Hurt<'_> {
        let (mut disks, older) = (copy(&self.c.disks), copy(&self.whole));
        let older = older.mdt_number(mdt).clone();
        match mdt.checked_sub(1) {
            None => disks.mdt = older,
            Some(i) => disks.more_mdts[i as usize] = older,
        }
        Hurt { world: self, disks }
    }

    /// Serves what is on the disks.
    pub async fn serve(&mut self, disks: Disks) -> Result<Arc<Llite>, String> {
        self.c.disks = disks;
        self.c.kill_and_restart().await.map_err(|e| e.to_string())?;
        let fs = self.c.remote_client().await.map_err(|e| e.to_string())?;
        Ok(fs.llite().clone())
    }
}

/// Disks as they were at some time.
pub struct Found(pub Disks);

impl Found {
    pub fn hurt<'w>(&self, world: &'w World) -> Hurt<'w> {
        let disks = self.0.clone();
        Hurt { world, disks }
    }
}

/// Everything that a client finds, byte for byte; an error in the place of what it cannot read.
pub async fn walk(u: &User) -> Tree {
    let mut tree = Tree::new();
    let mut todo = vec![String::new()];
    while let Some(dir) = todo.pop() {
        for e in u.list(&dir).await.unwrap_or_default() {
            if &e.name[..] == b"." || &e.name[..] == b".." {
                continue;
            }
            let name = String::from_utf8_lossy(&e.name).into_owned();
            let path = match &dir[..] {
                "" => name,
                dir => format!("{dir}/{name}"),
            };
            let (kind, data) = match look(u, e.fid).await {
                Ok(seen) => seen,
                Err(errno) => (0, errno.to_string().into_bytes()),
            };
            if kind == 0o040000 {
                todo.push(path.clone());
            }
            let fid = e.fid;
            tree.insert(path, Seen { fid, kind, data });
        }
    }
    tree
}

/// Type and content.
async fn look(u: &User, fid: Fid) -> crate::common::Result<(u32, Vec<u8>)> {
    let kind = u.fs.getattr(&u.cred, fid, None).await?.attr.mode & 0o170000;
    let data = match kind {
        0o040000 => Vec::new(),
        0o120000 => u.fs.readlink(&u.cred, fid).await?.to_vec(),
        _ => {
            let fh = u.fs.open(&u.cred, fid, libc::O_RDONLY as u32).await?;
            let data = u.read(&fh, 0, 1 << 20).await;
            u.close(&fh).await?;
            data?
        }
    };
    Ok((kind, data))
}

/// Disks that are being damaged.
pub struct Hurt<'w> {
    pub world: &'w World,
    pub disks: Disks,
}

impl Hurt<'_> {
    pub fn kvs(&self) -> Vec<OsdSim> {
        let all = 0..self.disks.mdt_count();
        all.map(|i| self.disks.mdt_number(i).clone()).collect()
    }

    /// The MGS takes an MDT as it is, an older copy.
    pub async fn accept(&self, mdt: u32) {
        let name = format!("{FSNAME}-MDT{mdt:04x}");
        let known = mgs::known(&self.disks.mgs).unwrap();
        let known = known.iter().find(|k| k.name == name).expect("registered");
        let kv = self.disks.mdt_number(mdt);
        let batch = older_copy::accept(kv, TargetKind::Mdt, known.registration).unwrap();
        kv.commit(batch).await.unwrap();
        kv.sync().await.unwrap();
    }

    pub fn fid(&self, path: &str) -> Fid {
        match path {
            "" => Fid::ROOT,
            path => self.world.fid(path),
        }
    }

    /// The MDT with the record of an object, undamaged.
    pub fn home(&self, fid: &Fid) -> u32 {
        let has = |i: &u32| {
            let kv = self.world.whole.mdt_number(*i);
            kv.get(table::INODE, &table::fid_key(fid))
                .unwrap()
                .is_some()
        };
        (0..3).find(has).expect("an object")
    }

    pub fn commit(&self, mdt: u32, b: Batch) {
        let kv = self.disks.mdt_number(mdt);
        kv.commit(b).wait().unwrap();
        kv.sync().wait().unwrap();
    }

    pub fn put(&self, mdt: u32, t: Table, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        let mut b = Batch::new();
        b.put(t, key, value);
        self.commit(mdt, b);
    }

    pub fn del(&self, mdt: u32, t: Table, key: impl Into<Bytes>) {
        let mut b = Batch::new();
        b.del(t, key);
        self.commit(mdt, b);
    }

    /// Rows as they were.
    pub fn rows(&self, mdt: u32, t: Table) -> Vec<(Bytes, Bytes)> {
        let kv = self.world.whole.mdt_number(mdt);
        kv.range(t, &[], None, usize::MAX).unwrap()
    }

    pub fn raw(&self, fid: &Fid) -> Bytes {
        let kv = self.world.whole.mdt_number(self.home(fid));
        kv.get(table::INODE, &table::fid_key(fid)).unwrap().unwrap()
    }

    /// Changes a record; of one that was damaged before, as it was.
    pub fn change(&self, fid: &Fid, f: impl FnOnce(&mut Inode)) {
        let mut ino = Inode::decode(&self.raw(fid)).unwrap();
        f(&mut ino);
        let key = table::fid_key(fid).to_vec();
        self.put(self.home(fid), table::INODE, key, ino.encode());
    }

    pub fn del_inode(&self, fid: &Fid) {
        self.del(self.home(fid), table::INODE, table::fid_key(fid).to_vec());
    }

    pub fn entry(&self, dir: &Fid, name: &str, child: &Fid, mode: u32) {
        let key = table::dirent_key(dir, table::name_hash(name.as_bytes()), name.as_bytes());
        let value = table::dirent_value(child, mode);
        self.put(self.home(dir), table::DIRENT, key, value);
    }

    pub fn del_entry(&self, dir: &Fid, name: &str) {
        let key = table::dirent_key(dir, table::name_hash(name.as_bytes()), name.as_bytes());
        self.del(self.home(dir), table::DIRENT, key);
    }

    /// The LMV attribute of a master or shard.
    pub fn lmv(&self, fid: &Fid) -> LmvMd {
        let ino = Inode::decode(&self.raw(fid)).unwrap();
        LmvMd::decode(ino.xattr_inline(b"trusted.lmv").expect("an attribute")).unwrap()
    }

    pub fn set_lmv(&self, fid: &Fid, value: Option<Bytes>) {
        use coral_server::mdt::record::XattrValue;
        self.change(fid, |ino| {
            ino.xattrs.retain(|(n, _)| n != "trusted.lmv");
            if let Some(v) = value {
                let name = Bytes::from_static(b"trusted.lmv");
                ino.xattrs.push((name, XattrValue::Inline(v)));
            }
        });
    }
}
