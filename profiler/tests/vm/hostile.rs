//! Tests of LTP by another user, who tries to have root's clean-up reach outside of the test's folder.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use profiler_base::error::exit;

use crate::cli::{Ended, Started, eventually, profiler};
use crate::ltp::Tree;

const NOBODY: u32 = 65_534;

/// Puts a link in the place of its folder.
const LINK: &str = "cd /; mv \"$TMPDIR\" \"$TMPDIR.mine\" 2> MARKS/refused; ln -s PLACE \"$TMPDIR\"; \
    echo done >> MARKS/tried; exit 0";

/// Leaves links in its folder, to everything.
const INSIDE: &str = "cd \"$TMPDIR\" && mkdir -p a/b && ln -s PLACE link && ln -s / a/root && \
    ln -s PLACE/file a/b/file && chmod 0 a/b && echo done >> MARKS/tried";

/// Leaves a tree deeper than there may be open files, and than a stack.
const DEEP: &str = "cd \"$TMPDIR\" && exec python3 -c 'import os
for _ in range(5000): os.mkdir(\"d\"); os.chdir(\"d\")
open(\"MARKS/tried\", \"a\").write(\"done\\n\")'";

/// Moves a folder of the user's that holds what is not.
const MOVES: &str = "mv MARKS/of-nobody \"$TMPDIR/\" && echo done >> MARKS/tried";

/// Can it write where root's files are, or find them?
const LOOKS: &str = "top=$(dirname \"$TMPDIR\"); \
    for way in '-w .' '-r .'; do \
    (cd \"$top\" && eval \"[ $way ]\") && echo \"$way\" >> MARKS/open; done; \
    ls -l /proc/$PPID/fd > /dev/null 2>&1 && echo fds >> MARKS/open; echo done >> MARKS/tried";

/// Mounts and files of root's that a load must not touch, and the tests.
struct Scene {
    tree: Tree,
    protected: String,
}

/// Debian has it 1, the kernel itself 0: then links in folders such as `/tmp` are followed, whoever made them.
const PROTECTED: &str = "/proc/sys/fs/protected_symlinks";

impl Scene {
    fn new(tests: &[(&str, &str)]) -> Self {
        let list: String = tests.iter().map(|(name, _)| format!("{name} {name}\n")).collect();
        let tree = Tree::new(tests, &list);
        tree.open_marks();
        let protected = fs::read_to_string(PROTECTED).unwrap();
        fs::write(PROTECTED, "0").unwrap();
        let scene = Self { tree, protected };
        for place in ["precious", "marks/of-nobody"] {
            let folder = scene.tree.path(place);
            fs::create_dir_all(folder.join("mnt")).unwrap();
            fs::create_dir(folder.join("roots")).unwrap();
            let none: Option<&str> = None;
            let tmpfs = Some("tmpfs");
            mount(none, &folder.join("mnt"), tmpfs, MsFlags::empty(), none).unwrap();
            for file in ["file", "mnt/file", "roots/file"] {
                fs::write(folder.join(file), "kept").unwrap();
            }
        }
        chown(scene.tree.path("marks/of-nobody"), Some(NOBODY), Some(NOBODY)).unwrap();
        for (name, _) in tests {
            let path = scene.tree.path("ltp/testcases/bin").join(name);
            let text = fs::read_to_string(&path).unwrap();
            let place = scene.tree.path("precious");
            let text = text.replace("PLACE", &place.to_string_lossy());
            fs::write(&path, text).unwrap();
        }
        scene
    }

    fn line(&self, more: &str) -> String {
        format!("--no-probe {} --load-user nobody {more}", self.tree.options())
    }

    fn tried(&self) -> usize {
        let tried = fs::read_to_string(self.tree.path("marks/tried")).unwrap_or_default();
        tried.lines().count()
    }

    /// Nothing of root's below `folder` is gone or another's.
    #[track_caller]
    fn assert_untouched(folder: &Path) {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let point = folder.join("mnt");
        let is_mounted = mounts.contains(&*point.to_string_lossy());
        assert!(is_mounted, "root has unmounted {}", point.display());
        for file in ["mnt/file", "roots/file"] {
            let path = folder.join(file);
            let text = fs::read_to_string(&path);
            assert_eq!(text.ok().as_deref(), Some("kept"), "root has removed {}", path.display());
            for path in [path.as_path(), path.parent().unwrap()] {
                let facts = fs::metadata(path).unwrap();
                let own = (facts.uid(), facts.mode() & 0o022);
                let is_mount = path.ends_with("mnt");
                assert!(own == (0, 0) || (is_mount && own.0 == 0), "{}: {own:?}", path.display());
            }
        }
    }

    #[track_caller]
    fn assert_all_untouched(&self, others: &str) {
        let place = self.tree.path("precious");
        Self::assert_untouched(&place);
        assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "kept");
        assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o7777, 0o755);
        Self::assert_untouched(&self.tree.path("marks/of-nobody"));
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let foreign = |text: &str| -> Vec<String> {
            let points = text.lines().filter_map(|line| line.split(' ').nth(4));
            points.map(str::to_owned).collect()
        };
        assert_eq!(foreign(&mounts), foreign(others), "mounts came or went");
    }

    /// The folder that a test of [`MOVES`] has moved, wherever it is now.
    fn moved(&self) -> PathBuf {
        let found = Command::new("find")
            .arg(self.tree.path("work"))
            .args(["-name", "of-nobody"])
            .output()
            .unwrap();
        let text = String::from_utf8(found.stdout).unwrap();
        PathBuf::from(text.lines().next().expect("root has removed the folder that was moved"))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::write(PROTECTED, &self.protected);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let place = self.tree.path("").to_string_lossy().into_owned();
        for point in mounts.lines().filter_map(|line| line.split(' ').nth(4)) {
            if point.starts_with(place.trim_end_matches('/')) {
                let _ = umount2(point, MntFlags::MNT_DETACH);
            }
        }
    }
}

/// A process of the load's user outside of the load, which goes on while root clears away.
struct Racer(Child);

impl Racer {
    fn start(scene: &Scene) -> Self {
        let script = format!(
            "while :; do for top in $(cat {marks}/tops 2>/dev/null); do cd \"$top/files\" 2>/dev/null || continue; \
             mkdir -p r/s 2>/dev/null; mv r r1 2>/dev/null; ln -s {place} r 2>/dev/null; \
             rm -f r 2>/dev/null; mv r1 r 2>/dev/null; \
             mv \"$top/files\" \"$top/w\" 2>/dev/null && ln -s {place} \"$top/files\"; done; done",
            marks = scene.tree.path("marks").display(),
            place = scene.tree.path("precious").display(),
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).uid(NOBODY).gid(NOBODY).process_group(0);
        Self(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Racer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn mounts() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap()
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn a_test_that_exchanges_its_folder_has_nothing_unmounted_removed_or_given_away() {
    let scene = Scene::new(&[("link01", LINK), ("looks01", LOOKS)]);
    let before = mounts();
    let line = scene.line("--iterations 1");
    let ended = Ended::of(&mut profiler(&format!("run {line}")));
    scene.assert_all_untouched(&before);
    assert_eq!(scene.tried(), 2, "{ended:?}");
    ended.assert_code(exit::OK);
    let open = fs::read_to_string(scene.tree.path("marks/open")).unwrap_or_default();
    assert_eq!(open, "", "the tests' user reaches what is root's");
    scene.tree.assert_no_files_left();
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn links_deep_trees_and_races_lead_the_clean_up_nowhere() {
    let root = LINK.replace("PLACE", "/");
    // Its path, for the racer outside.
    let tops = "dirname \"$TMPDIR\" >> MARKS/tops; sleep 0.3; echo done >> MARKS/tried";
    let tests = [("tops01", tops), ("slash01", &root), ("inside01", INSIDE), ("deep01", DEEP)];
    let scene = Scene::new(&tests);
    let before = mounts();
    let racer = Racer::start(&scene);
    let line = scene.line("--iterations 3");
    let ended = Ended::of(&mut profiler(&format!("run {line}")));
    drop(racer);
    scene.assert_all_untouched(&before);
    assert_eq!(scene.tried(), 12, "{ended:?}");
    ended.assert_code(exit::OK);
    scene.tree.assert_no_files_left();
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn what_a_test_moves_into_its_folder_is_left_unless_it_is_the_users() {
    for signal in [None, Some(Signal::SIGKILL)] {
        let moves = format!("{MOVES}; sleep {}", if signal.is_some() { 100 } else { 0 });
        let scene = Scene::new(&[("moves01", &moves)]);
        let line = scene.line("--iterations 1");
        match signal {
            None => {
                let ended = Ended::of(&mut profiler(&format!("run {line}")));
                assert_eq!(scene.tried(), 1, "{ended:?}");
                Scene::assert_untouched(&scene.moved());
                ended.assert_code(exit::LOAD_FAILED).assert_error(&["of-nobody", "left"]);
            }
            Some(signal) => {
                let mut run = Started::run(&line, &[]);
                eventually("the test does not move it", || scene.tried() == 1);
                run.signal(signal);
                run.end();
                let gone = || scene.moved().join("file").exists();
                eventually("nobody clears away", || !gone());
                Scene::assert_untouched(&scene.moved());
            }
        }
        Scene::assert_untouched(&scene.tree.path("precious"));
    }
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn what_a_command_moves_into_its_folder_is_left_unless_it_is_the_users() {
    let scene = Scene::new(&[("none01", "exit 0")]);
    let work = scene.tree.path("work");
    let line = format!("run --no-probe --load-user nobody --load-dir {}", work.display());
    let moves = MOVES.replace("MARKS", &scene.tree.path("marks").to_string_lossy());
    let ended = Ended::of(profiler(&line).args(["--", "sh", "-c", &moves]));
    ended.assert_code(exit::OK);
    assert_eq!(scene.tried(), 1, "{ended:?}");
    assert!(ended.stdout.contains("warning: what a load has left: "), "{ended:?}");
    Scene::assert_untouched(&scene.moved());
}
