// Launchers' environments as they are, and where their ranks meet.
#include "transport/bootstrap/environment.h"

#include <gtest/gtest.h>

#include <utility>

namespace tutti::bootstrap::environment_test {
namespace {

using Variables = std::map<std::string, std::string>;

LaunchPlace place(const Variables& variables, long launcher_process = 42) {
  const Result<LaunchPlace> result = launch_place({variables, launcher_process, 1000});
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? result.value() : LaunchPlace{};
}

std::string error(const Variables& variables) {
  const Result<LaunchPlace> result = launch_place({variables, 42, 1000});
  return result.ok() ? "(no error)" : result.status().message();
}

JoinInfo join_info(const LaunchPlace& place, const std::string& secret = "", unsigned user = 1000) {
  const Result<JoinInfo> result = join_info_of(place, secret, user);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? result.value() : JoinInfo{};
}

const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         {"PMIX_NAMESPACE", "1204486145"},    {"PMIX_RANK", "1"}};
const Variables kMpich{
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_FD", "8"}, {"MPI_LOCALNRANKS", "2"}, {"MPI_LOCALRANKID", "1"}};
const Variables kTorchrun{{"RANK", "3"},
                          {"WORLD_SIZE", "4"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "node7"},
                          {"MASTER_PORT", "29500"},
                          {"GROUP_RANK", "1"},
                          {"TORCHELASTIC_RUN_ID", "none"},
                          {"TORCHELASTIC_RESTART_COUNT", "0"}};
const Variables kSlurm{{"SLURM_PROCID", "5"},  {"SLURM_NTASKS", "8"},         {"SLURM_STEP_NUM_TASKS", "6"},
                       {"SLURM_LOCALID", "1"}, {"SLURM_JOB_ID", "981"},       {"SLURM_STEP_ID", "2"},
                       {"SLURM_NNODES", "3"},  {"SLURM_STEP_NUM_NODES", "3"}, {"SLURM_STEP_NODELIST", "gpu[03-05]"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST(Environment, AloneWithoutALauncher) {
  const LaunchPlace here = place({{"PATH", "/bin"}});
  EXPECT_EQ(here.size, 1);
  EXPECT_EQ(here.rank, 0);
  EXPECT_EQ(here.launcher, "none");
}

TEST(Environment, OpenMpi) {
  const LaunchPlace here = place(kOpenMpi);
  EXPECT_EQ(here.launcher, "Open MPI");
  EXPECT_EQ(here.rank, 1);
  EXPECT_EQ(here.size, 2);
  EXPECT_EQ(here.local_rank, 1);
  EXPECT_EQ(here.local_size, 2);
  EXPECT_TRUE(here.one_host);
  EXPECT_EQ(here.job, "1204486145");
}

TEST(Environment, Mpich) {
  const LaunchPlace here = place(kMpich);
  EXPECT_EQ(here.launcher, "MPICH");
  EXPECT_EQ(here.rank, 1);
  EXPECT_TRUE(here.one_host);
  EXPECT_EQ(here.job, "process 42");
}

TEST(Environment, TorchrunBeatsWhatItRunsIn) {
  Variables both = kSlurm;
  both.insert(kTorchrun.begin(), kTorchrun.end());
  const LaunchPlace here = place(both);
  EXPECT_EQ(here.launcher, "torchrun");
  EXPECT_EQ(here.rank, 3);
  EXPECT_EQ(here.local_rank, 1);
  EXPECT_FALSE(here.one_host);
  EXPECT_EQ(here.master_address, "node7");
}

TEST(Environment, Slurm) {
  const LaunchPlace here = place(kSlurm);
  EXPECT_EQ(here.launcher, "Slurm");
  EXPECT_EQ(here.rank, 5);
  EXPECT_EQ(here.size, 6);
  EXPECT_EQ(here.local_rank, 1);
  EXPECT_FALSE(here.one_host);
  EXPECT_EQ(here.job, "981.2");
  EXPECT_EQ(here.master_address, "gpu03");
  EXPECT_TRUE(place(with(kSlurm, "SLURM_STEP_NUM_NODES", "1")).one_host);
}

TEST(Environment, ABatchScriptOfSlurmIsNoStep) { EXPECT_EQ(place(without(kSlurm, "SLURM_STEP_ID")).size, 1); }

TEST(Environment, OwnNamesBeatAll) {
  const LaunchPlace here = place(with(with(kOpenMpi, "TUTTI_RANK", "2"), "TUTTI_SIZE", "7"));
  EXPECT_EQ(here.launcher, "tutti");
  EXPECT_EQ(here.rank, 2);
  EXPECT_EQ(here.size, 7);
  EXPECT_TRUE(here.one_host);
  EXPECT_EQ(here.job, "process 42");
}

TEST(Environment, WrongAndMissingVariablesAreNamed) {
  EXPECT_EQ(error(with(kOpenMpi, "OMPI_COMM_WORLD_RANK", "2")), "OMPI_COMM_WORLD_RANK is 2; expected 0 to 1");
  EXPECT_EQ(error(without(kMpich, "PMI_SIZE")), "PMI_SIZE is not set, though this launcher sets it");
  EXPECT_EQ(error({{"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "two"}}), "TUTTI_SIZE: 'two' is not a whole number");
  EXPECT_EQ(error({{"TUTTI_MASTER_PORT", "70000"}}), "TUTTI_MASTER_PORT is 70000; expected 0 to 65535");
}

TEST(Environment, RanksOfOneHostMeetUnderANameOfTheirJobAndUser) {
  const JoinInfo ours = join_info(place(kMpich));
  EXPECT_EQ(ours.server.address.rfind("@tutti-", 0), 0u);
  const JoinInfo same = join_info(place(with(kMpich, "PMI_RANK", "0")));
  EXPECT_EQ(same.server, ours.server);
  EXPECT_EQ(same.secret, ours.secret);
  const JoinInfo other_job = join_info(place(kMpich, 43));
  EXPECT_NE(other_job.server, ours.server);
  EXPECT_NE(other_job.secret, ours.secret);
  EXPECT_NE(join_info(place(kMpich), "", 1001).server, ours.server);
  EXPECT_NE(join_info(place(kMpich), "chosen").secret, ours.secret);
  EXPECT_NE(join_info(place(kOpenMpi)).server, ours.server);
}

TEST(Environment, RanksOfSeveralHostsMeetAtAnAddress) {
  const JoinInfo slurm = join_info(place(kSlurm));
  EXPECT_EQ(slurm.server.address, "gpu03");
  EXPECT_GE(slurm.server.port, 10'000);
  EXPECT_LT(slurm.server.port, 30'000);
  // torchrun's own store listens at its port.
  EXPECT_NE(join_info(place(kTorchrun)).server.port, 29500);
  const Variables own = with(with(kTorchrun, "TUTTI_MASTER_ADDR", "10.0.0.9"), "TUTTI_MASTER_PORT", "5000");
  EXPECT_EQ(join_info(place(own)).server, (sockets::Endpoint{"10.0.0.9", 5000}));
  const Result<JoinInfo> nowhere = join_info_of(place(with(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "1")), "", 1000);
  ASSERT_FALSE(nowhere.ok());
  EXPECT_EQ(nowhere.status().message(),
            "rank 1: Open MPI does not tell where the ranks on several hosts can meet; "
            "set TUTTI_MASTER_ADDR to the host of rank 0");
}

// As Open MPI 4.1 and MPICH 4.0 set them for the second rank of two, on another host than the first.
Variables open_mpi_on_two_hosts(int rank) {
  Variables variables = with(kOpenMpi, "OMPI_COMM_WORLD_RANK", rank == 0 ? "0" : "1");
  variables["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
  variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  variables["OMPI_MCA_orte_hnp_uri"] = "2657091584.0;tcp://10.66.0.1,192.0.2.2:41035;tcp6://[fd00::2]:41036";
  variables["OMPI_MCA_orte_local_daemon_uri"] =
      rank == 0 ? variables["OMPI_MCA_orte_hnp_uri"] : "2657091584.1;tcp://10.66.0.2:49371";
  return variables;
}

LaunchEnvironment mpich_on_two_hosts(std::vector<std::string> launcher) {
  return {with(with(kMpich, "MPI_LOCALNRANKS", "1"), "MPI_LOCALRANKID", "0"), 42, 1000, std::move(launcher)};
}

TEST(Environment, OpenMpiTellsWhereMpirunIs) {
  for (const int rank : {0, 1}) {
    const LaunchPlace here = place(open_mpi_on_two_hosts(rank));
    EXPECT_FALSE(here.one_host);
    EXPECT_EQ(here.master_address, "10.66.0.1,192.0.2.2,fd00::2");
  }
  EXPECT_EQ(join_info(place(open_mpi_on_two_hosts(0))).server, join_info(place(open_mpi_on_two_hosts(1))).server);
  EXPECT_EQ(join_info(place(with(open_mpi_on_two_hosts(1), "TUTTI_MASTER_ADDR", "beta"))).server.address, "beta");
}

TEST(Environment, OpenMpiWhoseMpirunIsNotOnTheHostOfRankZero) {
  const Variables variables =
      with(open_mpi_on_two_hosts(0), "OMPI_MCA_orte_local_daemon_uri", "2657091584.1;tcp://10.66.0.2:49371");
  const Result<JoinInfo> nowhere = join_info_of(place(variables), "", 1000);
  ASSERT_FALSE(nowhere.ok());
  EXPECT_EQ(nowhere.status().message(),
            "rank 0: Open MPI does not tell where the ranks on several hosts can meet; "
            "set TUTTI_MASTER_ADDR to the host of rank 0");
}

TEST(Environment, OpenMpiOnOneHostNeedsNoAddress) {
  const Variables variables = with(kOpenMpi, "OMPI_MCA_orte_hnp_uri", "1204486144.0;tcp://10.66.0.1:41035");
  EXPECT_EQ(join_info(place(variables)).server.address.rfind("@tutti-", 0), 0u);
}

TEST(Environment, MpichTellsWhereMpiexecIs) {
  const LaunchEnvironment one =
      mpich_on_two_hosts({"/usr/bin/hydra_pmi_proxy", "--control-port", "10.66.0.1:36857", "--rmk"});
  LaunchEnvironment other = one;
  other.launcher_process = 77;  // each host has its own
  const LaunchPlace here = launch_place(one).take();
  EXPECT_FALSE(here.one_host);
  EXPECT_EQ(here.master_address, "10.66.0.1");
  EXPECT_EQ(here.job, "mpiexec 10.66.0.1:36857");
  EXPECT_EQ(join_info(here).server, join_info(launch_place(other).take()).server);
  EXPECT_EQ(join_info(here).secret, join_info(launch_place(other).take()).secret);
  for (const std::vector<std::string>& unknown : {std::vector<std::string>{}, {"proxy"}, {"proxy", "--control-port"}}) {
    const Result<JoinInfo> nowhere = join_info_of(launch_place(mpich_on_two_hosts(unknown)).take(), "", 1000);
    ASSERT_FALSE(nowhere.ok());
    EXPECT_NE(nowhere.status().message().find("MPICH does not tell where"), std::string::npos);
  }
}

TEST(Environment, SlurmWithMpichsLanguageIsSlurm) {
  const Variables variables = with(with(kSlurm, "PMI_RANK", "5"), "PMI_SIZE", "6");
  EXPECT_EQ(place(variables).launcher, "Slurm");
  EXPECT_EQ(place(variables).master_address, "gpu03");
  // mpiexec inside a batch job: its processes on the hosts were started by srun, its ranks were not.
  EXPECT_EQ(place(with(with(variables, "PMI_RANK", "2"), "MPI_LOCALNRANKS", "2")).launcher, "MPICH");
}

TEST(Environment, HostsThatAreToldByHandAgreeOnTheirJob) {
  Variables variables{{"TUTTI_RANK", "1"}, {"TUTTI_SIZE", "2"}, {"TUTTI_MASTER_ADDR", "alpha"}};
  const JoinInfo here = join_info(place(variables, 42));
  EXPECT_EQ(here.server, join_info(place(variables, 77)).server) << "another host's launching process is another one";
  EXPECT_EQ(here.secret, join_info(place(variables, 77)).secret);
  EXPECT_NE(here.secret, join_info(place(with(variables, "TUTTI_MASTER_PORT", "29400"))).secret);
  EXPECT_NE(here.secret, join_info(place(with(variables, "TUTTI_JOB", "second"))).secret);
}

TEST(Environment, FirstHostOfASlurmList) {
  EXPECT_EQ(first_host("node"), "node");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("node[07-09,12],login"), "node07");
  EXPECT_EQ(first_host("node[3]"), "node3");
  EXPECT_EQ(first_host("login,node[1-2]"), "login");
  EXPECT_EQ(first_host("n[1,4]-ib,x"), "n1-ib");
  EXPECT_EQ(first_host(""), "");
  EXPECT_EQ(first_host("n[1"), "n");
}

TEST(Environment, ThisProcessHasSurroundings) {
  const LaunchEnvironment here = launch_environment();
  EXPECT_FALSE(here.variables.empty());
  EXPECT_GE(here.launcher_process, 0);
}

}  // namespace
}  // namespace tutti::bootstrap::environment_test
