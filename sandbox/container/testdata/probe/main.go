// Command probe is what the tests run inside sandboxes: it does one thing,
// named by its first argument, and tells what it saw.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/proxy"
)

func init() { runtime.LockOSThread() } // main runs on the first thread

func main() {
	if len(os.Args) < 2 {
		fmt.Println("hello")
		return
	}
	switch os.Args[1] {
	case "see":
		see()
	case "echo":
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			fmt.Println(in.Text())
		}
	case "write":
		for _, p := range os.Args[2:] {
			err := os.WriteFile(p, []byte("x"), 0o644)
			fmt.Printf("%s %v\n", p, err)
		}
	case "hog":
		hog()
	case "fork":
		fork()
	case "files":
		files()
	case "cat":
		for _, p := range os.Args[2:] {
			b, err := os.ReadFile(p)
			if err != nil {
				fmt.Println(err)
			}
			fmt.Printf("%s\n", b)
		}
	case "look": // at a file, for each line
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			b, err := os.ReadFile(os.Args[2])
			if err == nil {
				err = os.WriteFile(os.Args[2], nil, 0o600)
			}
			fmt.Printf("%q %v\n", b, err)
		}
	case "net":
		network(os.Args[2:])
	case "exit":
		fmt.Fprintln(os.Stderr, "leaving")
		os.Exit(7)
	case "spin":
		for {
		}
	case "sleep":
		fmt.Println("sleeping")
		time.Sleep(time.Hour)
	case "cling":
		// Takes back the wish to die with the host, which belongs to this thread.
		const setParentDeathSignal = 1
		_, _, err := syscall.Syscall(syscall.SYS_PRCTL, setParentDeathSignal, 0, 0)
		fmt.Println("clinging", err)
		time.Sleep(time.Hour)
	case "child":
		c := exec.Command(os.Args[0], "sleep")
		fmt.Println("started", c.Start())
		time.Sleep(time.Hour)
	}
}

func see() {
	for _, f := range []string{"/proc/self/status", "/proc/self/mountinfo", "/proc/net/dev"} {
		b, err := os.ReadFile(f)
		fmt.Printf("== %s %v\n%s", f, err, b)
	}
	for _, d := range []string{"/", "/dev", "/workspace", "/provider", "/proc/self/fd", "/tmp"} {
		entries, err := os.ReadDir(d)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		fmt.Printf("== ls %s %v %s\n", d, err, strings.Join(names, " "))
	}
	fmt.Println("== env", strings.Join(os.Environ(), " "))
	fmt.Println("== pid", os.Getpid(), "uid", os.Getuid(), "gid", os.Getgid())
}

func hog() {
	var all [][]byte
	for i := 0; ; i++ {
		b := make([]byte, 1<<20)
		for j := 0; j < len(b); j += 4096 {
			b[j] = 1
		}
		all = append(all, b)
		if i%16 == 0 {
			fmt.Println("MiB", len(all))
		}
	}
}

func fork() {
	for i := 0; i < 1000; i++ {
		c := exec.Command(os.Args[0], "sleep")
		if err := c.Start(); err != nil {
			fmt.Println("stopped after", i, err)
			return
		}
	}
	fmt.Println("never stopped")
	time.Sleep(time.Hour)
}

func files() {
	var all []*os.File
	for i := 0; i < 100000; i++ {
		f, err := os.Open("/dev/null")
		if err != nil {
			fmt.Println("stopped after", i)
			return
		}
		all = append(all, f)
	}
	fmt.Println("never stopped", len(all))
}

// network tries each "how=where": by the proxy of the environment, by SOCKS on
// the same port, or straight.
func network(tries []string) {
	for _, try := range tries {
		how, where, _ := strings.Cut(try, "=")
		said, err := reach(how, where)
		fmt.Printf("%s %s: %q %v\n", how, where, said, err)
	}
}

func reach(how, where string) (string, error) {
	by, err := url.Parse(os.Getenv("HTTP_PROXY"))
	if err != nil {
		return "", err
	}
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyURL(by)}}
	switch how {
	case "dial":
		c, err := net.DialTimeout("tcp", where, 5*time.Second)
		if err == nil {
			c.Close()
		}
		return "", err
	case "lookup":
		list, err := net.LookupHost(where)
		return strings.Join(list, " "), err
	case "socks":
		d, err := proxy.SOCKS5("tcp", by.Host, nil, nil)
		if err != nil {
			return "", err
		}
		client.Transport = &http.Transport{DisableKeepAlives: true, Dial: d.Dial}
	case "connect":
		where = "https" + strings.TrimPrefix(where, "http")
	}
	resp, err := client.Get(where)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.Status + " " + string(b), err
}
